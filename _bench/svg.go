package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A chart has horizontal bars, the shortest first. Less is better.
type chart struct {
	File  string `json:"file"`
	Title string `json:"title"`
	Unit  string `json:"unit"`
	Suite string `json:"suite"` // the argument of -run that measures the chart again
	About string `json:"about"` // when, on which processor and with which versions it was measured
	Bars  []bar  `json:"bars"`
}

type bar struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

func slug(s string) string { return strings.NewReplacer(", ", "-", " ", "-").Replace(s) }

// The smallest text has 11 px. If a telephone shows the figure 330 px wide, this text has 10 px
// there.
const style = `text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600;font-size:15px}.b,.nw{font-weight:600}.p{fill:#8c98a4}.w{fill:#0b6e99}.s{fill:#59636e;font-size:11px}.g{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.p{fill:#656f7a}.w{fill:#4db5dd}.s{fill:#9198a1}.g{fill:#0d1117}}`

func (c chart) svg() string {
	bars := slices.SortedFunc(slices.Values(c.Bars), func(a, b bar) int { return cmp.Compare(a.Value, b.Value) })
	const width, margin, right, step = 360, 8, 84, 38
	scale := float64(width-margin-right) / bars[len(bars)-1].Value
	notes := append([]string{"Less is better. Measured by go run -C _bench . -run " + c.Suite}, fold(c.About, 58)...)
	title := fold(c.Title, 38)
	top := 20 * len(title)
	height := top + 12 + step*len(bars) + 15*len(notes) + 8
	var b strings.Builder
	text := func(class string, x float64, y int, s string) {
		fmt.Fprintf(&b, `<text class="%s" x="%.1f" y="%d">%s</text>`+"\n", class, x, y, html.EscapeString(s))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s"><title>%[3]s</title><style>%s</style>`+"\n", width, height, html.EscapeString(c.Title), style)
	fmt.Fprintf(&b, `<rect class="g" width="%d" height="%d" rx="6"/>`+"\n", width, height)
	for i, line := range title {
		text("t", margin, 20+20*i, line)
	}
	for i, r := range bars {
		class, y := "p", top+10+step*i
		if strings.HasPrefix(r.Name, weirName) {
			class = "w"
		}
		text("n"+class, margin, y+12, r.Name)
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="14" rx="2"/>`+"\n", class, margin, y+17, max(1, r.Value*scale))
		text("b", margin+max(1, r.Value*scale)+6, y+29, number(r.Value)+" "+c.Unit)
	}
	for i, line := range notes {
		text("s", margin, height-15*(len(notes)-1-i)-8, line)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// number formats a number: below 100 with one decimal, and otherwise as a whole number with
// commas.
func number(x float64) string {
	if x < 100 {
		return fmt.Sprintf("%.1f", x)
	}
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// fold breaks a text into lines of at most n letters.
func fold(text string, n int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > n {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}

// draw writes the numbers of the charts to the file charts.json in the directory dir. Charts of
// other runs stay in that file. Then draw writes an SVG for each chart of the file.
func draw(dir string, charts []chart) error {
	name := filepath.Join(dir, "charts.json")
	var all []chart
	switch text, err := os.ReadFile(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(text, &all); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, c := range charts {
		all = append(slices.DeleteFunc(all, func(old chart) bool { return old.File == c.File }), c)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range all {
		if err := os.WriteFile(filepath.Join(dir, c.File+".svg"), []byte(c.svg()), 0o644); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}
