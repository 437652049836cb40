package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// A table holds results of a suite. It is printed in Markdown. Some tables also have charts.
type table struct {
	title  string
	note   string
	header []string
	rows   [][]string
	charts []chart
	place  string // in a page, where the table stands between <!-- place --> and <!-- end -->; "" means none
}

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, row)
}

func (t *table) write(w io.Writer) {
	fmt.Fprintf(w, "\n## %s\n\n", t.title)
	t.writeBody(w)
}

func (t *table) writeBody(w io.Writer) {
	if t.note != "" {
		fmt.Fprintf(w, "%s\n\n", t.note)
	}
	line := func(cells []string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.header)
	line(slices.Repeat([]string{"---"}, len(t.header)))
	for _, r := range t.rows {
		line(r)
	}
}

// writeInto replaces what the page has at the place of the table. It does nothing if page is
// empty, or if the table has no place.
func (t *table) writeInto(page string) error {
	if page == "" || t.place == "" {
		return nil
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, after, found := cutPlace(string(text), t.place)
	if !found {
		return fmt.Errorf("%s has no place <!-- %s --> for a table", page, t.place)
	}
	var b strings.Builder
	t.writeBody(&b)
	return os.WriteFile(page, []byte(before+b.String()+after), 0o644)
}

// cutPlace returns what a page has before and after the table at a place, with the marks.
func cutPlace(page, place string) (before, after string, found bool) {
	begin := "<!-- " + place + " -->\n"
	before, rest, begins := strings.Cut(page, begin)
	_, after, ends := strings.Cut(rest, "<!-- end -->")
	return before + begin, "<!-- end -->" + after, begins && ends
}

// against returns a text with the ratio of x to the least of others, and whether this ratio
// meets the target.
func against(x float64, others []float64, target float64) string {
	best := slices.Min(others)
	verdict := "met"
	if x > target*best {
		verdict = "missed"
	}
	return fmt.Sprintf("%.2f × the best peer (target %.2f: %s)", x/best, target, verdict)
}
