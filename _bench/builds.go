package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// binary compares the sizes of programs that answer every request with "hello", without symbols.
func binary(options) ([]*table, error) {
	const program = `package main

import (
	"fmt"
	"net/http"
	%s
)

func main() {
	h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") }))
	%s
	_ = http.ListenAndServe("127.0.0.1:0", h)
}
`
	t := &table{title: "The size of a program", note: "MB of an executable that answers \"hello\", built with -ldflags=-s, and how much more than net/http alone.", header: []string{"", "MB", "more"}}
	alone := 0.0
	for _, p := range []struct{ name, imports, limit string }{
		{"net/http alone", "", ""},
		{weirName, `"time"; "github.com/seed83679106/weir"; "github.com/seed83679106/weir/algorithms"; "github.com/seed83679106/weir/memstore"`,
			`h = weir.Middleware(memstore.New(memstore.Options{}), "api", weir.ByIP(), algorithms.GCRA(100, time.Minute))(h)`},
		{"httprate", `"time"; "github.com/go-chi/httprate"`, `h = httprate.LimitByIP(100, time.Minute)(h)`},
	} {
		dir, err := os.MkdirTemp(".", "hello")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if err := os.WriteFile(filepath.Join(dir, "main.go"), fmt.Appendf(nil, program, p.imports, p.limit), 0o644); err != nil {
			return nil, err
		}
		file := filepath.Join(dir, "hello")
		if out, err := exec.Command("go", "build", "-ldflags=-s", "-o", file, "./"+dir).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", p.name, err, out)
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		mb := float64(info.Size()) / 1e6
		if alone == 0 {
			alone = mb
		}
		t.add(p.name, fmt.Sprintf("%.2f", mb), fmt.Sprintf("%.2f", mb-alone))
	}
	t.add("**target**", "", "at most 0.8")
	return []*table{t}, nil
}

// layout measures a hot key with one build of this program. See layouts.
func layout(o options) ([]*table, error) {
	t := &table{title: "A hot key in this build", note: "ns per check: the least of the rounds (and the median).", header: []string{"", "allowed", "denied"}}
	some := contenders[:2] // Weir and go-limiter
	var cells [2][]any
	for _, s := range []scene{{quota: plenty, period: time.Second}, {quota: 1, period: time.Hour}} {
		s.keys, s.goroutines, s.ops = keysOf(1), 1, 4_000
		results, err := s.measure(some, o.short())
		if err != nil {
			return nil, err
		}
		for i, r := range results {
			cells[i] = append(cells[i], r.leastAndMedian())
		}
	}
	for i, c := range some {
		t.add(append([]any{c.name}, cells[i]...)...)
	}
	return []*table{t}, nil
}

var layoutRow = regexp.MustCompile(`(?m)^\| (\S+) \| (\d+) \(\d+\) \| (\d+) \(\d+\) \|$`)

// layouts builds this program n times, each time with its functions in another random order, and
// returns the range of the times of a hot key.
func layouts(n int) (*table, error) {
	t := &table{title: "A hot key in builds with random layouts", note: fmt.Sprintf("ns per check: the least and the most of %d builds with -ldflags=-randlayout, each by the least of its rounds.", n), header: []string{"", "allowed", "denied"}}
	dir, err := os.MkdirTemp("", "layouts")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	times := map[string]*[2]series{}
	var names []string
	for i := range n {
		file := filepath.Join(dir, "bench")
		if out, err := exec.Command("go", "build", fmt.Sprintf("-ldflags=-randlayout=%d", i+1), "-o", file, ".").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
		out, err := exec.Command(file, "-figures", "", "-run", "^layout$").Output()
		if err != nil {
			return nil, err
		}
		for _, row := range layoutRow.FindAllStringSubmatch(string(out), -1) {
			if times[row[1]] == nil {
				times[row[1]] = new([2]series)
				names = append(names, row[1])
			}
			for k := range 2 {
				ns, _ := strconv.ParseFloat(row[2+k], 64)
				times[row[1]][k] = append(times[row[1]][k], ns)
			}
		}
	}
	for _, name := range names {
		t.add(name, times[name][0].ends(), times[name][1].ends())
	}
	return t, nil
}
