package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestMeasure measures the processor time and memory of pages that play for the duration in
// MEASURE:
//
//	MEASURE=20s go test -C _examples/playground/e2e -run TestMeasure -v
//	MEASURE=10m go test -C _examples/playground/e2e -run TestMeasure/all -v
//
// On a busy machine the processor time is somewhat longer.
func TestMeasure(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("MEASURE"))
	if err != nil {
		t.Skip("MEASURE is not set: it says how long to measure, such as 20s")
	}
	patience += length
	base := serveStatic(t)
	for _, name := range append(tapes, "gate", "chat", "replicas", "outage", "all", "lab") {
		t.Run(name, func(t *testing.T) {
			begin := used()
			var p *page
			if name == "lab" {
				p = open(t, base+"/try.html#pattern=steady")
			} else {
				p = openStory(t, base)
			}
			if name != "lab" && name != "all" {
				p.do(chromedp.ScrollIntoView(chromedp.CSS("#" + name + " .stage")))
			}
			load := since(begin)
			time.Sleep(5 * time.Second) // until the browser has compiled the code
			eval[any](p, fmt.Sprintf(`(() => {
				const again = () => {
					for (const [name, s] of Object.entries(playground.scenes ?? {})) if ([name, "all"].includes(%q) && !s.playing) (s.start ?? s.play).call(s);
				};
				again();
				setInterval(again, 500);
			})()`, name))
			from, until := used(), time.Now().Add(length)
			for time.Now().Before(until) {
				time.Sleep(min(time.Until(until), time.Minute))
				eval[any](p, "0")
			}
			play := since(from)
			eval[any](p, hide)
			time.Sleep(time.Second)
			from = used()
			time.Sleep(length / 2)
			hidden := since(from)
			eval[any](p, show)
			m := eval[[2]float64](p, `(globalThis.gc?.(), [performance.memory.usedJSHeapSize / 1e6, weir.memory() / 1e6])`)
			t.Logf("%.1f s of processor time to load, %.1f %% of a core to play and %.1f %% when hidden, a heap of %.1f MB and %.1f MB of the library",
				load.Seconds(), 100*play.Seconds()/length.Seconds(), 200*hidden.Seconds()/length.Seconds(), m[0], m[1])
		})
	}
}

// used returns the processor time that each process of the browser has used, by pid. It
// works on Linux only.
func used() map[int]time.Duration {
	root := chromedp.FromContext(browser).Browser.Process().Pid
	parents, all := map[int]int{}, map[int]time.Duration{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the process has ended
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		parents[pid], _ = strconv.Atoi(fields[1])
		for _, ticks := range fields[11:13] {
			n, _ := strconv.Atoi(ticks)
			all[pid] += time.Duration(n) * 10 * time.Millisecond
		}
	}
	for pid := range all {
		up := pid
		for up != root && up != 0 {
			up = parents[up]
		}
		if up == 0 {
			delete(all, pid)
		}
	}
	return all
}

// since returns the processor time that the browser has used since an earlier call of used.
// The argument before is what that call returned.
func since(before map[int]time.Duration) (sum time.Duration) {
	for pid, d := range used() {
		sum += d - before[pid]
	}
	return sum
}
