package regions_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/regions"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

// A wire is a slow connection to the central store that loses some calls and some answers.
// The clock of the central store is ahead, and runs faster or slower than the others.
type wire struct {
	central quota.Store
	slow    time.Duration
	lossy   int // the percentage of calls of which the call or the answer is lost
	start   time.Time
	ahead   time.Duration
	drift   float64 // how much faster the clock runs: 0.001 is a millisecond per second

	mu sync.Mutex
	r  *rand.Rand // guarded by mu
}

func (w *wire) Take(ctx context.Context, tx *quota.Transaction) error {
	w.mu.Lock()
	there, back, fate := w.r.Int64N(int64(w.slow)), w.r.Int64N(int64(w.slow)), w.r.IntN(100)
	w.mu.Unlock()
	time.Sleep(time.Duration(there))
	if fate < w.lossy/2 {
		return weirtest.ErrDown
	}
	err := w.central.Take(ctx, tx)
	tx.At = tx.At.Add(w.ahead + time.Duration(w.drift*float64(time.Since(w.start)))).Truncate(time.Microsecond)
	time.Sleep(time.Duration(back))
	if fate < w.lossy {
		return weirtest.ErrDown
	}
	return err
}

// An admission is a charge that a region has admitted.
type admission struct {
	at, cost int64 // at is in µs since 1970
}

// A ledger has the admissions of all regions, by key. It checks the bound of a limit on its
// own: it knows nothing of parts, spans or debts.
type ledger struct {
	mu sync.Mutex
	of map[string][]admission
}

func (g *ledger) add(key string, at, cost int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of[key] = append(g.of[key], admission{at, cost})
}

// worst returns the most units that a key got in any window of time, both ends included, beyond
// what the rate gives in that window. A limit holds if that is at most its burst.
func (g *ledger) worst(l quota.Limit) (worst float64) {
	perMicro := float64(l.Quota) / float64(l.Period.Microseconds())
	for _, all := range g.of {
		slices.SortFunc(all, func(a, b admission) int { return int(a.at - b.at) })
		// best is the largest surplus of the windows that end with the admission a.
		best, last := 0.0, all[0].at
		for _, a := range all {
			best = max(0, best-perMicro*float64(a.at-last)) + float64(a.cost)
			last = a.at
			worst = max(worst, best)
		}
	}
	return worst
}

// units returns how many units were admitted in all.
func (g *ledger) units() (n int64) {
	for _, all := range g.of {
		for _, a := range all {
			n += a.cost
		}
	}
	return n
}

// A world is several regions that share one limit.
type world struct {
	seed    uint64
	limit   quota.Limit
	regions int
	every   time.Duration
	keys    int
	most    int64 // the largest cost
	phase   time.Duration
}

func (w world) String() string {
	return fmt.Sprintf("seed %d: %d regions, %v, spans of %v, %d keys, costs up to %d", w.seed, w.regions, w.limit, w.every, w.keys, w.most)
}

// makeWorld makes a world from a seed: limits from a few units a minute to thousands a second,
// with bursts that last for less than a span or for many spans.
func makeWorld(seed uint64, r *rand.Rand) world {
	between := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	w := world{seed: seed, regions: 2 + r.IntN(3), keys: 1, most: 1}
	w.every = time.Duration(between(100, 2000)) * time.Millisecond
	w.phase = time.Duration(between(1, 8) * float64(w.every))
	period := []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour}[r.IntN(4)]
	countable := quota.MaxTicks / period.Microseconds()
	units := min(countable, max(10*int64(w.regions), int64(between(0.5, 2000)*period.Seconds())))
	burst := min(countable, max(int64(w.regions), int64(between(0.05, 60)*float64(units)/period.Seconds())))
	w.limit = []quota.Limit{
		algorithms.GCRA(units, period).WithBurst(burst),
		algorithms.TokenBucket(burst, units, period),
		algorithms.LeakyBucket(burst, units, period),
	}[r.IntN(3)]
	if r.IntN(2) == 0 {
		w.most = 1 + r.Int64N(max(1, burst/int64(w.regions)))
	}
	if r.IntN(2) == 0 {
		w.keys = []int{2, 3, 8, 40}[r.IntN(4)]
	}
	return w
}

// ask spends units in phases, which begin at the same time in all regions. In each phase a
// process has its own key, costs and pauses. In some phases it is idle, and at times it asks for
// a key that was idle for a while.
func (w world) ask(t *testing.T, r *rand.Rand, store quota.Store, g *ledger) {
	rate := float64(w.limit.Quota) / w.limit.Period.Seconds()
	begun := time.Now()
	for phase := range 10 {
		end := begun.Add(time.Duration(1+phase) * w.phase)
		key, most := r.IntN(w.keys), 1+r.Int64N(w.most)
		// From a fifth of the whole rate up to 20 times that rate.
		pause := time.Duration(float64(1+most) / 2 / (rate * math.Pow(100, r.Float64()) / 5) * 1e9)
		for calls := r.IntN(2) * 100; calls > 0 && time.Now().Before(end); calls-- {
			k, cost := fmt.Sprint("k", key), 1+r.Int64N(most)
			if r.IntN(4) == 0 {
				k, cost = fmt.Sprint("k", r.IntN(w.keys)), 1+r.Int64N(w.most)
			}
			if tx := weirtest.Take(t, store, 0, quota.Charge{Rule: "r", Key: k, Limit: w.limit, Cost: cost}); tx.Allowed() {
				g.add(k, tx.Decisions[0].At, cost)
			}
			time.Sleep(min(pause, time.Until(end)) + 1)
		}
		time.Sleep(time.Until(end))
	}
}

// run runs a world and returns its admissions.
func (w world) run(t *testing.T, r *rand.Rand) *ledger {
	time.Sleep(time.Duration(r.Int64N(1e9)))
	ctx, cancel := context.WithCancel(t.Context())
	central, g := weirtest.Memory(), &ledger{of: map[string][]admission{}}
	start, ahead, drift := time.Now(), time.Duration(r.Int64N(int64(2*time.Hour))), (r.Float64()-0.5)*2e-3
	var wg sync.WaitGroup
	for i := range w.regions {
		local := weirtest.Memory()
		for p := range 1 + r.IntN(2) {
			r := rand.New(rand.NewPCG(w.seed, uint64(1+10*i+p)))
			far := &wire{central: central, slow: time.Duration(1 + r.Int64N(int64(w.every))), lossy: r.IntN(3) * 10,
				start: start, ahead: ahead, drift: drift, r: rand.New(rand.NewPCG(w.seed, r.Uint64()))}
			store := regions.New(local, far, regions.Options{Budget: "b", Region: fmt.Sprint(i), Regions: w.regions, Every: w.every, Logger: slog.New(slog.DiscardHandler)})
			go store.Run(ctx)
			wg.Go(func() { w.ask(t, r, store, g) })
		}
	}
	wg.Wait()
	cancel()
	time.Sleep(time.Minute) // until calls that have begun end
	return g
}

// TestRegionsNeverExceed: regions of several processes never admit more of a key than one store
// would, in any window of time. Calls of the central store are slow or lost, its clock differs
// from the clocks of the regions, demand jumps, and keys are idle for a while and then get
// requests again. The command for 100,000 worlds:
//
//	WEIR_LONG=100 go test -run TestRegionsNeverExceed -timeout 1h ./contrib/regions
func TestRegionsNeverExceed(t *testing.T) {
	first := rand.Uint64()
	n := rounds.N(100, 1000)
	total, failed := int64(0), 0
	for i := range n {
		seed := first + uint64(i)
		r := rand.New(rand.NewPCG(seed, 0))
		w := makeWorld(seed, r)
		var worst float64
		synctest.Test(t, func(t *testing.T) {
			g := w.run(t, r)
			worst = g.worst(w.limit)
			total += g.units()
		})
		if most := float64(w.limit.Burst); worst > most+1e-3 {
			failed++
			t.Errorf("%v: got %.2f units more than the rate allows, want the burst at most", w, worst)
		}
	}
	t.Logf("%d worlds from seed %d on, %d units admitted, %d worlds exceed their limit", n, first, total, failed)
}

// TestRegionsIdleKey: a key that was idle in a region while another region had the rate gains
// nothing by the rate that the region gets later. And a key that owes units owes them for longer
// if its region loses the rate.
func TestRegionsIdleKey(t *testing.T) {
	type phase struct {
		time time.Duration
		keys [2]string // the keys that the two regions are asked for
	}
	for name, phases := range map[string][]phase{
		"gets the rate":  {{20 * time.Second, [2]string{"", "k"}}, {time.Second, [2]string{"k", "k"}}, {40 * time.Second, [2]string{"", "k"}}, {4 * time.Second, [2]string{"other", "k"}}, {5 * time.Second, [2]string{"k", "k"}}},
		"loses the rate": {{20 * time.Second, [2]string{"k", ""}}, {time.Second, [2]string{"k", "k"}}, {22 * time.Second, [2]string{"", "k"}}, {5 * time.Second, [2]string{"k", "k"}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			central, g, l := weirtest.Memory(), &ledger{of: map[string][]admission{}}, algorithms.GCRA(100, time.Second).WithBurst(4000)
			var stores [2]*regions.Store
			for i := range stores {
				stores[i] = regions.New(weirtest.Memory(), central, regions.Options{Budget: "b", Region: fmt.Sprint(i), Regions: 2})
				go stores[i].Run(ctx)
			}
			for _, p := range phases {
				for end := time.Now().Add(p.time); time.Now().Before(end); time.Sleep(time.Millisecond) {
					for region, key := range p.keys {
						if key == "" {
							continue
						}
						if tx := weirtest.Take(t, stores[region], 0, quota.Charge{Rule: "r", Key: key, Limit: l, Cost: 1}); tx.Allowed() {
							g.add(key, tx.Decisions[0].At, 1)
						}
					}
				}
			}
			cancel()
			time.Sleep(time.Minute)
			worst := g.worst(l)
			if worst > 4000+1e-3 {
				t.Errorf("%s: got %.1f units more than the rate allows, want the burst of 4000 at most", name, worst)
			}
		})
	}
}
