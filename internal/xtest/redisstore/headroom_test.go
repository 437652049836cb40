package redisstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// floodEnvironment names the variable that makes the test program one of the processes of
// TestHeadroomFlood; its value is a flood.
const floodEnvironment = "WEIR_HEADROOM_FLOOD"

func TestMain(m *testing.M) {
	text := os.Getenv(floodEnvironment)
	if text == "" {
		os.Exit(m.Run())
	}
	var f flood
	err := json.Unmarshal([]byte(text), &f)
	if err == nil {
		err = f.run()
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(&f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A flood says how many units the people of a process want, while its batch jobs want as many as they
// can get, and what the process has got.
type flood struct {
	Addr   string
	Limit  int // the index in floodLimits
	People int
	Each   int // how many attempts of its batch jobs a process waits for before the next request of people

	Refused         int   // of the people
	Batch, Attempts int64 // of the batch jobs
}

const floodCapacity, floodHeadroom = 200, 60

var floodLimits = []quota.Limit{
	algorithms.GCRA(500, time.Second).WithBurst(floodCapacity),
	algorithms.GCRA(floodCapacity, 1000*time.Hour),
	algorithms.FixedWindow(floodCapacity, 1000*time.Hour),
	algorithms.SlidingLog(floodCapacity, 1000*time.Hour),
	algorithms.InFlight(floodCapacity, 1000*time.Hour),
}

// run charges a unit at a time. The people come while the batch jobs do, one after every so many of their
// attempts, and the batch jobs go on until the people have what they want.
func (f *flood) run() error {
	rdb := redis.NewClient(&redis.Options{Addr: f.Addr})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	people := quota.Charge{Rule: "flood", Key: "acme", Limit: floodLimits[f.Limit], Cost: 1}
	batch := people
	batch.Headroom = floodHeadroom
	var attempts, admitted atomic.Int64
	var done atomic.Bool
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for after := 0; after < 20; {
				d, err := quota.Allow(context.Background(), store, batch)
				if errs[i] = err; err != nil {
					attempts.Add(1 << 40) // the people need not wait
					return
				}
				if attempts.Add(1); d.Allowed {
					admitted.Add(1)
				}
				if done.Load() {
					after++
				}
			}
		})
	}
	for n := range f.People {
		for attempts.Load() < int64(f.Each*n) {
			time.Sleep(time.Millisecond)
		}
		d, err := quota.Allow(context.Background(), store, people)
		if err != nil {
			return err
		}
		if !d.Allowed {
			f.Refused++
		}
	}
	done.Store(true)
	wg.Wait()
	f.Batch, f.Attempts = admitted.Load(), attempts.Load()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestHeadroomFlood: four processes flood one key of a Redis with batch jobs, which leave 60 of 200
// units to people. People are never refused as long as they want no more, and the batch jobs get
// the rest.
func TestHeadroomFlood(t *testing.T) {
	addr := redistest.Server(t).Addr()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i, limit := range floodLimits {
		if err := rdb.FlushDB(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		floods := make([]flood, 4)
		var wg sync.WaitGroup
		for j := range floods {
			floods[j] = flood{Addr: addr, Limit: i, People: rounds.N(10, 15), Each: rounds.N(10, 200)}
			wg.Go(func() {
				if err := floods[j].start(t.Context()); err != nil {
					t.Errorf("process %d: %v", j, err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		var all flood
		for _, f := range floods {
			all.People, all.Refused, all.Batch, all.Attempts = all.People+f.People, all.Refused+f.Refused, all.Batch+f.Batch, all.Attempts+f.Attempts
		}
		peeked, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "flood", Key: "acme", Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		left := peeked.Decisions[0].Remaining
		t.Logf("%v: people %d, refused %d; batch %d of %d; %d left", limit, all.People, all.Refused, all.Batch, all.Attempts, left)
		if all.Refused > 0 {
			t.Errorf("%v: %d of %d requests of people were refused, want none", limit, all.Refused, all.People)
		}
		if i > 0 && (int64(all.People)+all.Batch+left != floodCapacity || left > floodHeadroom || left < int64(floodHeadroom-all.People)) {
			t.Errorf("%v: people got %d and batch jobs %d, and %d of %d are left", limit, all.People, all.Batch, left, floodCapacity)
		}
		if i == 0 && all.Batch < int64(floodCapacity-floodHeadroom-all.People) { // and what the limit refills
			t.Errorf("%v: batch jobs got %d units, want all but the headroom", limit, all.Batch)
		}
	}
}

// start runs the flood in a process of its own.
func (f *flood) start(ctx context.Context) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env, cmd.Stderr = append(os.Environ(), floodEnvironment+"="+string(text)), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(out, f)
}
