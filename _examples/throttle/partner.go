package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir/_examples/internal/demo"
)

const (
	tick    = 250 * time.Millisecond // between two lines of the timeline
	pauseAt = 11                     // the number of the arrival that the partner answers with 429
	pause   = 2 * time.Second        // the Retry-After of that answer
	grace   = 500 * time.Millisecond // requests that arrive this soon after that answer were already on their way
)

// A partner is the server of another company. It refuses more than its quota in any second,
// and asks for a pause once.
type partner struct{ line *timeline }

func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	over, asks := p.line.arrive(r.URL.Path[1:])
	switch {
	case asks:
		w.Header().Set("Retry-After", strconv.Itoa(int(pause/time.Second)))
		http.Error(w, "please pause", http.StatusTooManyRequests)
	case over:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	default:
		time.Sleep(30 * time.Millisecond) // the time that an answer takes
		fmt.Fprintln(w, "done")
	}
}

// leaving records each request when it is sent, after the limiter has let it go ahead.
type leaving struct{ line *timeline }

func (l leaving) RoundTrip(r *http.Request) (*http.Response, error) {
	l.line.leave(r.URL.Path[1:])
	return http.DefaultTransport.RoundTrip(r)
}

// A timeline records requests, and prints them.
type timeline struct {
	mu            sync.Mutex
	start         time.Time
	left, arrived string // initials of the clients whose requests left or arrived since the last line

	arrivals []time.Time
	most     int       // the most arrivals in any second
	paused   time.Time // when the partner asked for a pause
	early    int       // arrivals during the pause, later than grace; 0 if all goes well
	ok       int       // answers with status 200
}

func (t *timeline) leave(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left += name[:1]
}

func (t *timeline) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ok++
}

// arrive records an arrival. It reports whether more requests than the quota arrived in the
// last second, and whether the partner now asks for a pause.
func (t *timeline) arrive(name string) (over, asks bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.arrivals = append(t.arrivals, now)
	t.arrived += name[:1]
	n := t.lastSecond(now)
	t.most = max(t.most, n)
	if since := now.Sub(t.paused); since > grace && since < pause {
		t.early++
	}
	if asks = len(t.arrivals) == pauseAt; asks {
		t.paused = now
		t.arrived += "!"
	}
	return n > quota, asks
}

func (t *timeline) lastSecond(now time.Time) (n int) {
	for _, at := range t.arrivals {
		if now.Sub(at) < time.Second {
			n++
		}
	}
	return n
}

// print prints a line with the requests since the last line, if there are any.
func (t *timeline) print() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left == "" && t.arrived == "" {
		return
	}
	now := time.Now()
	n := t.lastSecond(now)
	fmt.Printf("%5.2f s  left %-6s arrived %-6s  in the last second %s%s", now.Sub(t.start).Seconds(),
		t.left, t.arrived, strings.Repeat("#", n), strings.Repeat(".", max(0, quota-n)))
	if strings.Contains(t.arrived, "!") {
		fmt.Print("  " + demo.Red(fmt.Sprintf("429, Retry-After: %d", pause/time.Second)))
	}
	fmt.Println()
	t.left, t.arrived = "", ""
}

// check prints a summary. It returns an error unless every request was done, the partner
// never saw more than its quota, no request arrived during the pause except within grace,
// and only one request was sent twice.
func (t *timeline) check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Printf("\n%d of %d requests were done in %.1f s. The partner saw %d in a second at most, and %d in its pause.\n",
		t.ok, each*len(names), time.Since(t.start).Seconds(), t.most, t.early)
	if t.ok != each*len(names) || t.most > quota || t.early > 0 || len(t.arrivals) != t.ok+1 {
		return fmt.Errorf("want all requests done, at most %d in any second, and none in the pause; %d arrived", quota, len(t.arrivals))
	}
	return nil
}
