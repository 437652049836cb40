package main

import (
	"fmt"
	"io"
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
