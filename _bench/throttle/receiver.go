package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A receiver is the server that the clients send their requests to. It records when each
// request arrives, and takes 10 to 30 ms to answer it.
type receiver struct {
	url string
	srv *http.Server

	mu   sync.Mutex
	seen []arrival
}

// An arrival is a request as the receiver sees it.
type arrival struct {
	at   time.Time
	turn int64 // when the request was due to leave, in µs since 1970; 0 if the store did not decide
}

func receive() (*receiver, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + ln.Addr().String()}
	r.srv = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = r.srv.Serve(ln) }()
	return r, nil
}

func (r *receiver) close() { _ = r.srv.Close() }

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a := arrival{at: time.Now()}
	a.turn, _ = strconv.ParseInt(req.Header.Get(turnField), 10, 64)
	r.mu.Lock()
	r.seen = append(r.seen, a)
	r.mu.Unlock()
	time.Sleep(10*time.Millisecond + rand.N(20*time.Millisecond))
	w.WriteHeader(http.StatusNoContent)
}

// arrivals returns the arrivals in the order of time.
func (r *receiver) arrivals() []arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := slices.Clone(r.seen)
	slices.SortFunc(seen, func(a, b arrival) int { return a.at.Compare(b.at) })
	return seen
}

// A summary holds the results of a row.
type summary struct {
	tally
	time  time.Duration   // from the start of the clients to the last answer
	gap   time.Duration   // mean time from an arrival to the arrival that comes Limit requests later
	over  int             // windows with more arrivals than the limit
	most  int             // the most arrivals in one window
	late  []time.Duration // how long after its turn each request arrived, the shortest first
	stall time.Duration   // the longest stall of this machine
}

// judge counts the arrivals in every window [t, t + period) that begins with an arrival. Other
// windows need no count: if a window were moved on to begin with its first arrival, it would
// hold at least as many arrivals.
func (s *summary) judge(seen []arrival, r *row) {
	end := 0
	for begin, a := range seen {
		for end < len(seen) && seen[end].at.Sub(a.at) < r.Period {
			end++
		}
		s.most = max(s.most, end-begin)
		if end-begin > r.Limit {
			s.over++
		}
		if a.turn != 0 {
			s.late = append(s.late, a.at.Sub(time.UnixMicro(a.turn)))
		}
	}
	if n := (len(seen) - 1) / r.Limit; n > 0 {
		s.gap = seen[n*r.Limit].at.Sub(seen[0].at) / time.Duration(n)
	}
	slices.Sort(s.late)
}

func printHeader() {
	columns := []string{
		"period, limit, processes × concurrency, requests", "published: time, ideal", "time", "÷ published ideal",
		"÷ shortest", "mean gap", "windows over", "most in one", "lost", "delay from turn to arrival: median, 99 %, most", "longest stall of the machine",
	}
	fmt.Println("| " + strings.Join(columns, " | ") + " |")
	fmt.Println(strings.Repeat("| --- ", len(columns)) + "|")
}

func (s *summary) print(r *row) {
	its, ratio := "–", "–"
	if r.time > 0 {
		its = fmt.Sprintf("%.0f s", r.time.Seconds())
	}
	if r.ideal > 0 {
		its += fmt.Sprintf(", %.0f s", r.ideal.Seconds())
		ratio = fmt.Sprintf("%.4f", s.time.Seconds()/r.ideal.Seconds())
	}
	fmt.Printf("| %v, %d, %d × %d, %d | %s | %.2f s | %s | %.4f | %.3f s | %d | %d | %d | %v, %v, %v | %v |\n",
		r.Period, r.Limit, r.Processes, r.Concurrency, r.Requests, its,
		s.time.Seconds(), ratio, s.time.Seconds()/r.shortest().Seconds(), s.gap.Seconds(),
		s.over, s.most, r.Requests-s.Answered, milliseconds(s.quantile(0.5)), milliseconds(s.quantile(0.99)), milliseconds(s.quantile(1)), milliseconds(s.stall))
	if s.Errors > 0 || s.Lost > 0 {
		fmt.Printf("\n%d requests failed, and %d were sent without a limit because the store failed. The first error: %s\n\n", s.Lost, s.Errors, s.First)
	}
}

func (s *summary) quantile(q float64) time.Duration {
	if len(s.late) == 0 {
		return 0
	}
	return s.late[int(q*float64(len(s.late)-1))]
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }
