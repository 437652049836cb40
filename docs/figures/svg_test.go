package figures_test

import (
	"encoding/xml"
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
	"testing"
)

// A drawing is an SVG in light or dark colours, as the reader prefers. It has a background
// of its own, so it can also be read on a page that ignores this preference.
type drawing struct {
	strings.Builder
}

const style = `
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.name { font-weight: 600 }
.soft { fill: #59636e }
.big { font-size: 22px; font-weight: 600 }
.end { text-anchor: end }
.mid { text-anchor: middle }
.paper { fill: #ffffff }
.grid { stroke: #d1d9e0; stroke-width: 1; fill: none }
.edge { stroke: #818b98; stroke-width: 1; stroke-dasharray: 2 3; fill: none }
.curve { stroke: #0969da; stroke-width: 1.5; fill: none; stroke-linejoin: round }
.area { fill: #0969da; fill-opacity: .13 }
.span { fill: #bf8700; fill-opacity: .18 }
.yes { fill: #1a7f37 }
.less { fill: #0969da }
.more { fill: #cf222e }
.no { stroke: #cf222e; stroke-width: 1.2; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.soft { fill: #9198a1 }
.paper { fill: #0d1117 }
.grid { stroke: #3d444d }
.edge { stroke: #656c76 }
.curve { stroke: #4493f8 }
.area { fill: #4493f8; fill-opacity: .2 }
.span { fill: #d29922; fill-opacity: .22 }
.yes { fill: #3fb950 }
.less { fill: #4493f8 }
.more { fill: #f85149 }
.no { stroke: #f85149 }
}
`

// width is the width of every drawing in px. A telephone shows a drawing 360 px wide, which
// makes text of 13 px appear 11 px high.
const width = 420

// draw begins a drawing. Screen readers read title and desc.
func draw(height int, title, desc string) *drawing {
	d := new(drawing)
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">`,
		width, height, width, height)
	d.printf(`<title id="title">%s</title>`, html.EscapeString(title))
	d.printf(`<desc id="desc">%s</desc>`, html.EscapeString(desc))
	d.printf(`<style>%s</style>`, style)
	d.printf(`<rect class="paper" width="%d" height="%d" rx="6"/>`, width, height)
	d.text(16, 30, "title", title)
	return d
}

func (d *drawing) end() string {
	d.printf(`</svg>`)
	return d.String()
}

func (d *drawing) printf(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// num returns a coordinate as text, rounded to a tenth.
func num(x float64) string {
	s := strconv.FormatFloat(x, 'f', 1, 64)
	return strings.TrimSuffix(s, ".0")
}

func (d *drawing) text(x, y float64, class, text string) {
	d.printf(`<text x="%s" y="%s" class="%s">%s</text>`, num(x), num(y), class, html.EscapeString(text))
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.printf(`<path class="%s" d="M%s %sL%s %s"/>`, class, num(x1), num(y1), num(x2), num(y2))
}

func (d *drawing) rect(class string, x, y, w, h float64) {
	d.printf(`<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`, class, num(x), num(y), num(w), num(h))
}

type point struct{ x, y float64 }

// curve returns the path of a polyline through points. It leaves out points in the middle
// of a level stretch.
func curve(points []point) string {
	var b strings.Builder
	for i, p := range points {
		if i > 0 && i < len(points)-1 && num(points[i-1].y) == num(p.y) && num(p.y) == num(points[i+1].y) {
			continue
		}
		fmt.Fprintf(&b, "%c%s %s", "ML"[min(i, 1)], num(p.x), num(p.y))
	}
	return b.String()
}

// level draws a curve and fills the area below it.
func (d *drawing) level(points []point, ground float64) {
	line := curve(points)
	d.printf(`<path class="area" d="%sL%s %sL%s %sZ"/>`, line, num(points[len(points)-1].x), num(ground), num(points[0].x), num(ground))
	d.printf(`<path class="curve" d="%s"/>`, line)
}

// yes draws the sign of an admitted request, and the method no draws the sign of a refused
// request. The signs differ in colour and in shape.
func (d *drawing) yes(x, y float64) {
	d.printf(`<circle class="yes" cx="%s" cy="%s" r="1.8"/>`, num(x), num(y))
}

func (d *drawing) no(x, y float64) {
	d.printf(`<path class="no" d="M%s %sl3.4 3.4m0 -3.4l-3.4 3.4"/>`, num(x-1.7), num(y-1.7))
}

// wellFormed fails the test unless the text is well-formed XML.
func wellFormed(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// thousands writes 12345 as 12,345.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
