package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/internal/test/minilua"
)

// A demonstration sends requests to the replicas alternately.
type demonstration struct {
	ctx      context.Context
	replicas []*replica
	asked    int // calls of Redis so far
}

// A step is a number of requests by one client, and the expected results.
type step struct {
	say    string
	client string
	times  int
	passed int
	asked  int           // calls of Redis
	pause  time.Duration // before each request: a Breaker counts failures within 25 ms as one
}

// atMost is how long a request may take on average, with Redis or without: a tenth of the timeout, on a busy machine.
const atMost = timeout / 10

func (d *demonstration) run(embedded *miniredis.Miniredis) error {
	fmt.Println("Each client has 10 requests per minute, at two replicas together. A dash is a refusal.")
	if err := d.show(
		step{"Anna sends 20 requests. Both replicas count down together.", "anna", 20, 10, 12, 0},
		step{"Anna goes on. Redis is not called, because Hybrid remembers the refusal.", "anna", 100, 0, 0, 0},
	); err != nil || embedded == nil {
		return err
	}
	embedded.Close()
	if err := d.show(
		step{"Redis goes away. Each replica calls Redis 5 times, and then no more for a second. Ben has 5 requests at each replica.", "ben", 20, 10, 10, 15 * time.Millisecond},
		step{"What Redis had refused stays refused.", "anna", 10, 0, 0, 0},
	); err != nil {
		return err
	}
	if err := embedded.Restart(); err != nil {
		return err
	}
	embedded.Server().SetPreHook(minilua.Add)
	select {
	case <-time.After(time.Second): // BreakerOptions.Cooldown
	case <-d.ctx.Done():
	}
	return d.show(
		step{"Redis is back. It has not counted ben's requests, so ben has 10 again. In an outage, at most twice the limit is admitted.", "ben", 20, 10, 12, 0},
	)
}

func (d *demonstration) show(steps ...step) error {
	for _, s := range steps {
		fmt.Printf("\n%s\n\n$ curl -i -H 'X-API-Key: %s' %s/\n", demo.Bold(s.say), s.client, d.replicas[0].base)
		passed, longest, took := 0, time.Duration(0), time.Duration(0)
		left := make([]string, len(d.replicas))
		for i := range s.times {
			time.Sleep(s.pause)
			began := time.Now()
			n, ok, err := d.send(d.replicas[i%2].base, s.client)
			if err != nil {
				return err
			}
			one := time.Since(began)
			longest, took = max(longest, one), took+one
			if ok {
				passed++
			}
			left[i%2] += fmt.Sprintf("%4s", n)
		}
		took /= time.Duration(s.times)
		for i, r := range d.replicas {
			if s.times <= 20 && passed > 0 {
				fmt.Printf("  %s left: %s\n", strings.TrimPrefix(r.base, "http://"), left[i])
			}
		}
		asked := -d.asked
		for _, r := range d.replicas {
			asked += r.asked()
		}
		d.asked += asked
		fmt.Printf("  %d of %d allowed, %d calls of Redis; %.2f ms a request, %.2f at most\n",
			passed, s.times, asked, took.Seconds()*1e3, longest.Seconds()*1e3)
		if passed != s.passed || asked != s.asked || took > atMost {
			return fmt.Errorf("want %d allowed, %d calls of Redis, at most %v a request on average", s.passed, s.asked, atMost)
		}
	}
	return nil
}

// send returns how many requests are left, or "–" and false if the request was refused.
func (d *demonstration) send(base, client string) (left string, ok bool, err error) {
	req, err := http.NewRequestWithContext(d.ctx, http.MethodGet, base, nil)
	if err != nil {
		return "", false, err
	}
	req.Header.Set("X-API-Key", client)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", false, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	switch resp.StatusCode {
	case http.StatusOK:
		return resp.Header.Get("X-RateLimit-Remaining"), true, nil
	case http.StatusTooManyRequests:
		return "–", false, nil
	}
	return "", false, fmt.Errorf("%s: %s", base, resp.Status)
}
