package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// clientCommand is the argument that makes this program a client. The next argument is a job
// in JSON.
const clientCommand = "client"

// A job is the work of one client process.
type job struct {
	Row    row
	Share  int    // how many of the row's requests the process sends
	Redis  string // host:port
	URL    string // the address of the receiver
	Buffer time.Duration
	Ramp   time.Duration // the workers start one after the other within this time
}

// A tally is the report of a client process.
type tally struct {
	Answered int
	Lost     int // requests without an answer
	Errors   int // errors of the store, after which Transport sends the request without a limit
	First    string

	mu sync.Mutex
}

func (t *tally) add(u *tally) {
	t.Answered += u.Answered
	t.Lost += u.Lost
	t.Errors += u.Errors
	if t.First == "" {
		t.First = u.First
	}
}

// count adds 1 to a field of the tally, and keeps the first error.
func (t *tally) count(n *int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*n++
	if err != nil && t.First == "" {
		t.First = err.Error()
	}
}

// turnField is a header field that says when the request was due to leave, in µs since 1970.
// The time is from the clock of Redis. The clients and the receiver have the same clock,
// because they run on the same machine.
const turnField = "Weir-Turn"

// client is the main function of a client process. It prints that it is ready, waits for a
// line of input, sends its share of the requests, and prints the tally in JSON.
func client(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	// Thousands of workers call the store at once. With the default of 50 ms some calls
	// would time out, and Transport would send their requests without a limit.
	const patience = 10 * time.Second
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(patience, j.Redis))
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: patience})
	if err != nil {
		return err
	}
	t := &tally{}
	c, err := j.throttled(store, t)
	if err != nil {
		return err
	}
	if err := j.warmUp(store); err != nil {
		return err
	}

	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	go func() {
		_, _ = in.ReadString('\n') // returns when the program that started this client has ended
		os.Exit(1)
	}()

	work := make(chan struct{}, j.Share)
	for range j.Share {
		work <- struct{}{}
	}
	close(work)
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i, begin := 0, time.Now(); i < j.Row.Concurrency; i++ {
		for time.Since(begin) < j.Ramp*time.Duration(i)/time.Duration(j.Row.Concurrency) {
			<-tick.C
		}
		wg.Go(func() {
			for range work {
				if err := send(c, j.URL); err != nil {
					t.count(&t.Lost, err)
					continue
				}
				t.count(&t.Answered, nil)
			}
		})
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(t)
}

// limits are the limits that the processes share.
func (j *job) limits() []weir.Limit {
	return []weir.Limit{
		// At most Limit requests leave in any window of length Period.
		algorithms.SlidingLog(int64(j.Row.Limit), j.Row.Period).Named("quota"),
		// Requests leave at least two milliseconds apart. If hundreds of requests left at
		// one instant, some would arrive later than others, by a time that differs from
		// burst to burst. Buffer would have to be longer by that difference.
		algorithms.GCRA(500, time.Second).WithBurst(1).Named("pace"),
	}
}

// throttled returns a client that keeps to the limits.
func (j *job) throttled(store weir.Store, t *tally) (*http.Client, error) {
	limiter, err := weir.New(store, weir.Options{
		Rules:   []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: j.limits(), Buffer: j.Buffer}},
		MaxWait: 2*j.Row.shortest() + time.Minute,
		Observe: func(e weir.Event) {
			if e.Err != nil {
				t.count(&t.Errors, e.Err)
				return
			}
			turn := e.Transaction.At.Add(e.Transaction.Wait)
			e.Request.Header.Set(turnField, strconv.FormatInt(turn.UnixMicro(), 10))
		},
	})
	if err != nil {
		return nil, err
	}
	transport, err := limiter.Transport(weir.TransportOptions{
		Base: &http.Transport{MaxIdleConnsPerHost: j.Row.Concurrency},
	})
	return &http.Client{Transport: transport}, err
}

// warmUp charges ten other keys. Afterwards the process has a connection to Redis, and Redis
// has the script.
func (j *job) warmUp(store weir.Store) error {
	for i := range 10 {
		var charges []quota.Charge
		for _, l := range j.limits() {
			charges = append(charges, quota.Charge{Rule: "warm-up", Key: strconv.Itoa(i), Limit: l, Cost: 1})
		}
		if _, err := quota.Reserve(context.Background(), store, time.Minute, charges...); err != nil {
			return err
		}
	}
	return nil
}

func send(c *http.Client, url string) error {
	res, err := c.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusNoContent {
		return errors.New(res.Status)
	}
	return nil
}
