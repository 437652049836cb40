package histories_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A job tells a client process what to do.
type job struct {
	Addrs   []string
	Master  string // its name, if Addrs are those of Sentinels
	Process int
	Workers int
	Seed    uint64
	Until   time.Time
	Spread  bool // keys of a pair lie in different slots, so no pair is charged as one
	Store   way  // through which the process calls Redis
}

// A way is what stands between a process and its redisstore.
type way int

const (
	bare      way = iota
	hybrid        // Hybrid, which Redis tells of changes
	untracked     // Hybrid without CLIENT TRACKING
	ways          // how many there are
)

// environment names the variable that makes the test program a client; its value is a job.
const environment = "WEIR_HISTORY_CLIENT"

func TestMain(m *testing.M) {
	text := os.Getenv(environment)
	if text == "" {
		os.Exit(m.Run())
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		panic(err)
	}
	if err := j.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// start runs a job in a process of its own. The channel gets its operations when it has
// ended.
func (j job) start(t *testing.T) <-chan []op {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithDeadline(context.Background(), j.Until.Add(30*time.Second))
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self)
	cmd.Env, cmd.Stderr = append(os.Environ(), environment+"="+string(text)), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan []op, 1)
	go func() {
		var ops []op
		for dec := json.NewDecoder(out); ; {
			var o op
			if err := dec.Decode(&o); err != nil {
				if err != io.EOF {
					t.Errorf("the answers of process %d: %v", j.Process, err)
				}
				break
			}
			ops = append(ops, o)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v", j.Process, err)
		}
		result <- ops
	}()
	return result
}

// run charges keys from several goroutines and writes each operation when it has returned.
func (j job) run(w io.Writer) error {
	redis.SetLogger(&logging.VoidLogger{}) // servers are down on purpose
	o := redisstore.ClientOptions(0, j.Addrs...)
	o.MasterName = j.Master
	shared, err := redisstore.New(redis.NewUniversalClient(o), redisstore.Options{NoTracking: j.Store == untracked})
	if err != nil {
		return err
	}
	store := quota.Store(shared)
	if j.Store != bare {
		store = quota.Hybrid(shared, quota.HybridOptions{Logger: slog.New(slog.DiscardHandler)})
	}
	buf := bufio.NewWriter(w)
	enc := json.NewEncoder(buf)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range j.Workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(j.Seed, uint64(n)))
			for time.Now().Before(j.Until) {
				o := j.choose(rng)
				o.Worker, o.Store = j.Process*j.Workers+n, j.Store
				o.call(store)
				mu.Lock()
				_ = enc.Encode(o)
				mu.Unlock()
				pause := time.Duration(rng.IntN(20)) * time.Millisecond
				if o.Err != "" {
					pause += 200 * time.Millisecond
				}
				time.Sleep(pause)
			}
		})
	}
	wg.Wait()
	return buf.Flush()
}

// choose returns an operation. Four pairs of keys are in use at a time. Every 2 s others take
// their places, so that a history is short enough to be checked.
func (j job) choose(rng *rand.Rand) op {
	o := op{Pair: fmt.Sprintf("%d.%d", time.Now().Unix()/2, rng.IntN(4))}
	switch n := rng.IntN(20); {
	case n < 2:
		o.Kind = burst
	case n < 4:
		o.Kind = logged
	case n < 6:
		o.Kind = refund
	case n < 8:
		o.Kind = look
	case n < 11 && !j.Spread:
		o.Kind = spendBoth
	case n < 13:
		o.Kind = spendB
	default:
		o.Kind = spendA
	}
	if o.Kind == burst || o.Kind == logged {
		o.Pair = ""
	}
	return o
}

// call makes the operation and notes when it began, when it ended and what it returned.
func (o *op) call(store quota.Store) {
	var t quota.Transaction
	switch o.Kind {
	case burst:
		t.Charges = []quota.Charge{{Rule: "burst", Key: "k", Limit: bursts, Cost: 1}}
	case logged:
		t.Charges = []quota.Charge{{Rule: "logged", Key: "k", Limit: log, Cost: 1}}
	default:
		t.Charges = o.charges(o.Pair, counted)
	}
	o.Call = time.Now().UnixNano()
	err := store.Take(context.Background(), &t)
	o.Return = time.Now().UnixNano()
	o.note(&t, err)
}

// charges returns the charges of an operation on the keys of a pair.
func (o *op) charges(pair string, l quota.Limit) []quota.Charge {
	charge := func(key string, cost int64) quota.Charge {
		return quota.Charge{Rule: "history", Key: pair + key, Limit: l, Cost: cost}
	}
	switch o.Kind {
	case spendB:
		return []quota.Charge{charge("b", 1)}
	case spendBoth:
		return []quota.Charge{charge("a", 1), charge("b", 1)}
	case spendTwo:
		return []quota.Charge{charge("a", 2)}
	case refund:
		return []quota.Charge{charge("a", -1)}
	case look, forget:
		return []quota.Charge{charge("a", 0)}
	default:
		return []quota.Charge{charge("a", 1)}
	}
}

// note notes what a call has returned.
func (o *op) note(t *quota.Transaction, err error) {
	if err != nil {
		o.Err = err.Error()
		return
	}
	o.Allowed = t.Allowed()
	for i, d := range t.Decisions {
		o.Remaining = append(o.Remaining, d.Remaining)
		if l := &t.Charges[i].Limit; l.Algorithm == refills.Algorithm {
			unit := l.Period / time.Duration(l.Quota)
			o.Waits = max(o.Waits, int((d.RetryAfter+unit-1)/unit))
		}
	}
}

// The limits of the operations. counted does not refill while a test runs, so it is a counter.
var (
	counted = algorithms.AnchoredWindow(quotaOfPair, 24*time.Hour)
	bursts  = algorithms.GCRA(20, time.Second).WithBurst(5)
	log     = algorithms.SlidingLog(20, time.Second)
)
