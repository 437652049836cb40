// Throttle measures how well three processes keep to a shared quota for the requests that
// they send. It counts the requests that arrive in every window. Of a throttler that sleeps and
// polls Redis there are published measurements. Throttle repeats them with Weir and prints both
// results side by side.
//
//	go run -C _bench ./throttle            # four rows, four minutes
//	go run -C _bench ./throttle -quick     # three windows of each row, 17 seconds
//	go run -C _bench ./throttle -row 1 -buffer 30ms
//	go run -C _bench ./throttle -limit 20 -period 200ms
//
// It starts a redis-server, a receiving HTTP server and the client processes,
// all on loopback, and ends them.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/redistest"
)

// A row of the table is one run under one limit. Processes is the number of processes,
// Concurrency the number of workers of each process, and Requests the number of requests
// that all processes send together.
type row struct {
	Period      time.Duration
	Limit       int
	Processes   int
	Concurrency int
	Requests    int

	time, ideal time.Duration // as published; 0 if not published
}

var published = []row{
	{time.Second, 200, 3, 2000, 9000, 71 * time.Second, 45 * time.Second},
	{time.Second, 50, 3, 1000, 3000, 64 * time.Second, 60 * time.Second},
	{5 * time.Second, 100, 3, 500, 1500, 70 * time.Second, 70 * time.Second},
	{time.Second, 1, 3, 10, 30, 0, 27 * time.Second}, // two seconds less than the limit allows
}

// shortest returns how soon after the start the last request may leave: one period for every
// full or partial quota of requests except the first.
func (r *row) shortest() time.Duration {
	windows := (r.Requests + r.Limit - 1) / r.Limit
	return time.Duration(windows-1) * r.Period
}

func main() {
	log.SetFlags(0)
	if len(os.Args) == 3 && os.Args[1] == clientCommand {
		if err := client(os.Args[2]); err != nil {
			log.Fatal("client: ", err)
		}
		return
	}
	var own row
	number := flag.Int("row", 0, "run only this `row` of the table; the first is 1, and 0 runs all rows")
	quick := flag.Bool("quick", false, "send only enough requests for three windows of each row")
	buffer := flag.Duration("buffer", 25*time.Millisecond, "weir.Rule.Buffer")
	ramp := flag.Duration("ramp", time.Second, "start the workers of a process one after the other within this time")
	flag.IntVar(&own.Limit, "limit", 0, "run one row of your own, with this `limit`")
	flag.DurationVar(&own.Period, "period", time.Second, "with -limit: the period of the limit")
	flag.IntVar(&own.Processes, "processes", 3, "with -limit: the number of client processes")
	flag.IntVar(&own.Concurrency, "concurrency", 100, "with -limit: the number of workers of each process")
	flag.IntVar(&own.Requests, "requests", 0, "with -limit: the number of requests of all processes together; 0 means enough for ten windows")
	flag.Parse()

	rows := published
	switch {
	case own.Limit != 0:
		own.Requests = cmp.Or(own.Requests, 10*own.Limit)
		if min(own.Limit, own.Processes, own.Concurrency, own.Requests) < 1 || own.Period <= 0 {
			log.Fatal("All numbers of a row must be positive.")
		}
		rows = []row{own}
	case *number < 0 || *number > len(rows):
		log.Fatalf("There is no row %d: the table has rows 1 to %d.", *number, len(rows))
	case *number > 0:
		rows = rows[*number-1 : *number]
	}
	if *quick {
		for i := range rows {
			r := &rows[i]
			r.Requests, r.time, r.ideal = min(r.Requests, 3*r.Limit), 0, 0
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, rows, *buffer, *ramp)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, rows []row, buffer, ramp time.Duration) error {
	p := &program{}
	defer p.end()
	server := redistest.Server(p)
	fmt.Printf("Buffer %v, workers start within %v. The shortest time is (⌈requests/limit⌉ − 1) × period; the published ideal time is beside it.\n\n", buffer, ramp)
	printHeader()
	for i := range rows {
		r := &rows[i]
		ctx, cancel := context.WithTimeout(ctx, 2*r.shortest()+30*time.Second)
		s, err := measure(ctx, r, server.Addr(), buffer, ramp)
		cancel()
		if err != nil {
			return err
		}
		s.print(r)
	}
	return nil
}

// A program stands in for a testing.TB, so that redistest can start servers outside of a
// test.
type program struct {
	testing.TB
	cleanups []func()
}

func (p *program) Helper()                           {}
func (p *program) Cleanup(f func())                  { p.cleanups = append(p.cleanups, f) }
func (p *program) Skip(args ...any)                  { p.Fatal(args...) }
func (p *program) Fatal(args ...any)                 { p.end(); log.Fatal(args...) }
func (p *program) Fatalf(format string, args ...any) { p.end(); log.Fatalf(format, args...) }

func (p *program) TempDir() string {
	dir, err := os.MkdirTemp("", "throttle")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (p *program) end() {
	for len(p.cleanups) > 0 {
		last := len(p.cleanups) - 1
		p.cleanups[last]()
		p.cleanups = p.cleanups[:last]
	}
}
