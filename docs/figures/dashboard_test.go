package figures_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A recording is the content of dashboard.json: what each query of the dashboard returned
// in a real Prometheus. TestDashboardRun in internal/xtest/alerts writes it.
type recording map[string][]struct {
	Labels map[string]string
	Points [][2]float64 // a second of the run, and the value
}

// A chart is a panel of ops/weirprom/dashboard.json.
type chart struct {
	Title, Type string
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Custom     struct{ Stacking struct{ Mode string } }
			Thresholds struct{ Steps []struct{ Value float64 } }
		}
	}
	Targets []struct{ Expr, LegendFormat string }
}

// A trace is a series of a panel.
type trace struct {
	name   string
	points [][2]float64
}

// colours are those of the traces, in light and in dark.
var colours = [][2]string{{"#0969da", "#4493f8"}, {"#bc4c00", "#f0883e"}, {"#1a7f37", "#3fb950"}, {"#8250df", "#ab7df8"}, {"#cf222e", "#f85149"}, {"#7d6b00", "#d4b72c"}}

var label = regexp.MustCompile(`\{\{(\w+)\}\}`)

// traces returns what the queries of p returned, with the names of the legend.
func (p *chart) traces(t *testing.T, r recording) (list []trace) {
	for _, q := range p.Targets {
		if _, recorded := r[q.Expr]; !recorded {
			t.Fatalf("%s: %s is not in dashboard.json: run go test -C internal/xtest ./alerts -run TestDashboardRun -update", p.Title, q.Expr)
		}
		for _, s := range r[q.Expr] {
			name := label.ReplaceAllStringFunc(q.LegendFormat, func(l string) string { return s.Labels[label.FindStringSubmatch(l)[1]] })
			list = append(list, trace{name, s.Points})
		}
	}
	return list
}

// value writes the number v as Grafana writes numbers of that unit.
func value(v float64, unit string) string {
	switch {
	case v == 0:
		return "0"
	case unit == "percentunit":
		return num(100*v) + " %"
	case unit == "s" && v < 1:
		return num(1000*v) + " ms"
	case unit == "s":
		return num(v) + " s"
	case unit == "none":
		return num(v)
	}
	return num(v) + "/s"
}

// step returns the distance of the grid lines of a chart whose largest value is most. The
// distance is 1, 2 or 5 times a power of ten.
func step(most float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(most)))
	for _, s := range []float64{0.2, 0.5, 1} {
		if most/(s*power) <= 4.5 {
			return s * power
		}
	}
	return 2 * power
}

const runSeconds = 90

// stat draws a panel of one number: the last value, above the curve of all values.
func (d *drawing) stat(p *chart, tr trace, x, y float64) {
	const w, h = 186.0, 66.0
	most := 0.0
	for _, v := range tr.points {
		most = max(most, v[1])
	}
	var points []point
	for _, v := range tr.points {
		points = append(points, point{x + w*v[0]/runSeconds, y + h - 24*v[1]/max(most, 1e-9)})
	}
	d.level(points, y+h)
	d.printf(`<rect class="grid" x="%s" y="%s" width="%s" height="%s"/>`, num(x), num(y), num(w), num(h))
	d.text(x+8, y+18, "", p.Title)
	last, class := tr.points[len(tr.points)-1][1], "big yes"
	for i, s := range p.FieldConfig.Defaults.Thresholds.Steps {
		if i > 0 && last >= s.Value {
			class = "big more"
		}
	}
	d.text(x+8, y+42, class, value(last, p.FieldConfig.Defaults.Unit))
}

// series draws a panel of curves and returns the height of the panel.
func (d *drawing) series(p *chart, list []trace, top float64) float64 {
	const left, right, height = 60.0, 400.0, 84.0
	f := &p.FieldConfig.Defaults
	stacked := f.Custom.Stacking.Mode == "normal"
	bottoms, most := stack(list, stacked)
	ground := top + 14 + height
	x := func(second float64) float64 { return left + (right-left)*second/runSeconds }
	y := func(v float64) float64 { return ground - height*v/most }
	d.text(16, top, "name", p.Title)
	for v, s := 0.0, step(most); v <= most*1.001; v += s {
		d.line("grid", left, y(v), right, y(v))
		d.text(left-6, y(v)+4, "soft end", value(v, f.Unit))
	}
	for s := 0.0; s <= runSeconds; s += 30 {
		d.text(x(s), ground+17, "soft mid", fmt.Sprintf("%.0f s", s))
	}
	for _, s := range f.Thresholds.Steps {
		if 0 < s.Value && s.Value <= most {
			d.line("no", left, y(s.Value), right, y(s.Value))
		}
	}
	for i, tr := range slices.Backward(list) {
		class := fmt.Sprint("c", i%len(colours))
		for from := 0; from < len(tr.points); { // after a gap in the points another curve begins
			var upper, lower []point
			to := from
			for ; to < len(tr.points) && (to == from || tr.points[to][0] == tr.points[to-1][0]+1); to++ {
				upper = append(upper, point{x(tr.points[to][0]), y(tr.points[to][1])})
				lower = append(lower, point{x(tr.points[to][0]), y(bottoms[i][to])})
			}
			from = to
			if stacked {
				slices.Reverse(lower)
				d.printf(`<path class="fill %s" d="%s%sZ"/>`, class, curve(upper), strings.Replace(curve(lower), "M", "L", 1))
			}
			d.printf(`<path class="trace %s" d="%s"/>`, class, curve(upper))
		}
	}
	return d.legend(list, ground+38) - top + 34
}

// legend draws the colour and the name of each curve, in as many rows as it needs. The
// argument row is the y of the first row, and the result is the y of the last row.
func (d *drawing) legend(list []trace, row float64) float64 {
	at := 16.0
	for i, tr := range list {
		long := 24 + 7.4*float64(len(tr.name))
		if at+long > 412 {
			at, row = 16, row+19
		}
		d.printf(`<path class="trace thick c%d" d="M%s %sh12"/>`, i%len(colours), num(at), num(row-4))
		d.text(at+17, row, "", tr.name)
		at += long + 8
	}
	return row
}

// stack returns where the areas below the curves begin, for each curve and each point, and
// the largest value of all points, or 1 if that is 0. If stacked is false, all areas begin at
// 0. If it is true, each curve stands on the curve before it: stack adds the value of that
// curve to the points of the next curve.
func stack(list []trace, stacked bool) (bottoms [][]float64, most float64) {
	var below [runSeconds + 1]float64 // the top of the stack so far
	bottoms = make([][]float64, len(list))
	for i, tr := range list {
		for j, v := range tr.points {
			second := int(v[0])
			bottoms[i] = append(bottoms[i], below[second])
			if stacked {
				tr.points[j][1] += below[second]
				below[second] = tr.points[j][1]
			}
			most = max(most, tr.points[j][1])
		}
	}
	if most == 0 {
		most = 1
	}
	return bottoms, most
}

// TestDashboard draws the panels of ops/weirprom/dashboard.json, with the values that
// dashboard.json in this directory has for them.
func TestDashboard(t *testing.T) {
	var r recording
	var dashboard struct{ Panels []chart }
	for name, v := range map[string]any{"dashboard.json": &r, "../../ops/weirprom/dashboard.json": &dashboard} {
		data, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	panels := new(drawing)
	y, stats := 118.0, 0
	for i := range dashboard.Panels {
		p := &dashboard.Panels[i]
		list := p.traces(t, r)
		if p.Type == "stat" {
			panels.stat(p, list[0], 16+198*float64(stats%2), y)
			y += 78 * float64(stats%2)
			stats++
			continue
		}
		y += panels.series(p, list, y+14)
	}
	d := draw(int(y), "The dashboard, in a run of 90 seconds",
		"Six numbers and sixteen charts of the dashboard, from two servers that share a Redis. Crawlers are refused and banned, rules limit "+
			"and delay searches, Redis does not answer for 6 seconds, in which one server has a second store and the other lets requests pass, and one server loads a changed file before the other.")
	d.printf("<style>.trace { fill: none; stroke-width: 1.5; stroke-linejoin: round }\n.thick { stroke-width: 4 }\n.fill { stroke: none; fill-opacity: .3 }")
	for mode, open := range []string{"", "@media (prefers-color-scheme: dark) {\n"} {
		d.printf("%s", open)
		for i, c := range colours {
			d.printf(".trace.c%d { stroke: %s }\n.fill.c%d { fill: %s }", i, c[mode], i, c[mode])
		}
	}
	d.printf("}\n</style>")
	d.text(16, 52, "soft", "From 12 s: four crawlers. 20 to 50 s: a client on a deny list.")
	d.text(16, 69, "soft", "28 to 56 s: many searches. 66 to 72 s: Redis is paused.")
	d.text(16, 86, "soft", "78 s: a file has a mistake. 82 s: a server loads the mended")
	d.text(16, 103, "soft", "file. 86 s: the other server loads it too.")
	d.WriteString(panels.String())
	text := d.end()
	wellFormed(t, text)
	current(t, "dashboard.svg", text)
}
