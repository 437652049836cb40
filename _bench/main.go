// Command bench measures Weir and other rate limiters, and prints tables in Markdown. All
// limiters run in one process. Most tables let the limiters take turns in rounds. To run it:
//
//	go run -C _bench .                  all tables, in some minutes
//	go run -C _bench . -run redis       the tables of one suite
//	go run -C _bench . -quick           a few checks of each limiter, to test its decisions
//	go run -C _bench . -layouts 10      a hot key in ten builds with random layouts
//	go run -C _bench . -run options -page README.md
//	                                    one table, also written into the page
//
// It also writes figures to the directory of -figures. If a measured check makes a wrong
// decision, the program ends with an error.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

type options struct {
	quick  bool
	rounds int
}

// pick returns full, or quick in a quick run.
func (o options) pick(full, quick int) int {
	if o.quick {
		return quick
	}
	return full
}

// short returns how many rounds to make of measurements in nanoseconds. The rounds are many
// and short, so that some rounds run undisturbed.
func (o options) short() int { return o.pick(200, 1) }

type suite struct {
	name string
	run  func(options) ([]*table, error)
}

var suites = []suite{
	{"memory", memory},
	{"contention", contention},
	{"limits", limits},
	{"floors", floors},
	{"footprints", footprints},
	{"flood", flood},
	{"decorators", decorators},
	{"middleware", middleware},
	{"binary", binary},
	{"options", optionsTable},
	{"redis", redisTables},
	{"callers", callersTables},
	{"growth", growth},
	{"million", million},
	{"production", production},
}

func main() {
	run := flag.String("run", "", "run the tables whose name matches this `regexp`: memory, contention, limits, floors, footprints, flood, decorators, middleware, binary, options, redis, callers, growth, million, production")
	quick := flag.Bool("quick", false, "make few checks and write no figures and no page: this tests the decisions, and its times mean little")
	figures := flag.String("figures", "figures", "write figures to this `directory`; empty writes none")
	page := flag.String("page", "", "write tables into the places that this `file` has for them, such as README.md; empty writes none")
	random := flag.Int("layouts", 0, "only measure a hot key in this many builds, each with its functions in another random `order`")
	flag.Parse()
	only, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: -run:", err)
		os.Exit(2)
	}
	o := options{quick: *quick, rounds: 5}
	if o.quick {
		o.rounds, *figures, *page = 1, "", ""
	}
	about := machine()
	fmt.Printf("# Weir beside its peers\n\n%s\n", about)
	if *random > 0 {
		t, err := layouts(*random)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: layouts:", err)
			os.Exit(1)
		}
		t.write(os.Stdout)
		return
	}
	if *run == "^layout$" {
		suites = append(suites, suite{"layout", layout})
	}
	var charts []chart
	for _, s := range suites {
		if !only.MatchString(s.name) {
			continue
		}
		tables, err := s.run(o)
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", s.name, err)
			os.Exit(1)
		}
		for _, t := range tables {
			t.write(os.Stdout)
			if err := t.writeInto(*page); err != nil {
				fmt.Fprintln(os.Stderr, "bench:", err)
				os.Exit(1)
			}
			for _, c := range t.charts {
				c.Suite, c.About = s.name, about
				charts = append(charts, c)
			}
		}
	}
	if *figures == "" {
		return
	}
	if err := draw(*figures, charts); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// machine returns a line with the date, the processor, and the versions of Go, Redis and
// the libraries.
func machine() string {
	cpu := runtime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(info); m != nil {
			cpu = string(m[1])
		}
	}
	versions := []string{strings.Replace(runtime.Version(), "go", "Go ", 1)}
	if out, err := exec.Command("redis-server", "--version").Output(); err == nil {
		if m := regexp.MustCompile(`v=(\S+)`).FindSubmatch(out); m != nil {
			versions = append(versions, "Redis "+string(m[1]))
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			for _, peer := range []string{"go-redis/v9", "go-limiter", "httprate", "throttled/v2", "limiter/v3", "tollbooth/v7", "redis_rate/v10", "x/time", "valkey-go"} {
				if strings.HasSuffix(d.Path, "/"+peer) {
					versions = append(versions, peer+" "+d.Version)
				}
			}
		}
	}
	return fmt.Sprintf("%s: %s, %d cores. %s.", time.Now().Format("2 January 2006"), cpu, runtime.NumCPU(), strings.Join(versions, ", "))
}
