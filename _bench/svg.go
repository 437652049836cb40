package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// A chart has horizontal bars, the shortest first. Less is better.
type chart struct {
	file, title, unit string
	target            float64 // as a fraction of the best peer; 0 draws none
	bars              []bar
}

type bar struct {
	name  string
	value float64
}

func slug(s string) string { return strings.NewReplacer(", ", "-", " ", "-").Replace(s) }

const style = `text{font:14px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600;font-size:16px}.p{fill:#b6c2cf}.w{fill:#0b6e99}.m{stroke:#1f2328;stroke-dasharray:3 3}.s{fill:#59636e;font-size:12px}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.p{fill:#3d444d}.w{fill:#4db5dd}.m{stroke:#f0f6fc}.s{fill:#9198a1}}`

func (c chart) svg() string {
	bars := slices.Clone(c.bars)
	slices.SortFunc(bars, func(a, b bar) int { return int(a.value - b.value) })
	longest := bars[len(bars)-1].value
	const width, left, right, step = 800, 130, 90, 30
	scale := float64(width-left-right) / longest
	height := 60 + step*len(bars)
	best := 0.0
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s"><title>%[3]s</title><style>%s</style>`+"\n", width, height, html.EscapeString(c.title), style)
	fmt.Fprintf(&b, `<text class="t" x="0" y="18">%s</text>`+"\n", html.EscapeString(c.title))
	for i, r := range bars {
		class := "p"
		if strings.HasPrefix(r.name, weirName) {
			class = "w"
		} else if best == 0 || r.value < best {
			best = r.value
		}
		y := 34 + step*i
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text><rect class="%s" x="%d" y="%d" width="%.1f" height="18" rx="3"/><text x="%.1f" y="%d">%.0f %s</text>`+"\n",
			left-8, y+14, html.EscapeString(r.name), class, left, y, r.value*scale, float64(left)+r.value*scale+6, y+14, r.value, c.unit)
	}
	if c.target > 0 {
		x := float64(left) + best*c.target*scale
		fmt.Fprintf(&b, `<line class="m" x1="%.1f" x2="%.1f" y1="28" y2="%d"/><text class="s" x="%.1f" y="%d">our target</text>`+"\n", x, x, height-20, x+4, height-6)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
