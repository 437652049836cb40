package regions_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/contrib/regions"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// trips are the round trips from each region to the central store.
var trips = []time.Duration{5 * time.Millisecond, 70 * time.Millisecond, 150 * time.Millisecond}

// A demand is how many requests each region gets in a second, under a limit of 100 per
// second for all regions.
type demand struct {
	name string
	rate func(region int, at time.Duration) float64
}

var demands = []demand{
	{"even, 90 a second", func(int, time.Duration) float64 { return 30 }},
	{"one region has 80 of 95", func(i int, _ time.Duration) float64 { return []float64{10, 5, 80}[i] }},
	{"80 of 95 move each minute", func(i int, at time.Duration) float64 {
		if int(at/time.Minute)%3 == i {
			return 80
		}
		return 7.5
	}},
	{"60 in each, 180 in all", func(int, time.Duration) float64 { return 60 }},
	{"200 in one, 240 in all", func(i int, _ time.Duration) float64 { return []float64{20, 20, 200}[i] }},
}

// A way opens the store in which a region decides. All ways except Share use the central
// store.
type way struct {
	name string
	open func(ctx context.Context, region int, central quota.Store) quota.Store
}

var ways = []way{
	{"one store far away", func(_ context.Context, _ int, central quota.Store) quota.Store { return central }},
	{"the same behind leases of 1 s", func(ctx context.Context, _ int, central quota.Store) quota.Store {
		leases := lease.New(central, lease.Options{TTL: time.Second})
		context.AfterFunc(ctx, func() { leases.Close(context.Background()) })
		return leases
	}},
	{"Share, a third each", func(context.Context, int, quota.Store) quota.Store { return quota.Share(weirtest.Memory(), 3) }},
	{"regions", func(ctx context.Context, region int, central quota.Store) quota.Store {
		s := regions.New(weirtest.Memory(), central, regions.Options{Budget: "b", Region: fmt.Sprint(region), Regions: 3})
		go s.Run(ctx)
		return s
	}},
}

// An outcome has the measurements of a simulation.
type outcome struct {
	asked    int
	admitted []int64 // when each request was admitted, in µs since 1970
	waits    []time.Duration
}

// simulate runs the requests of all regions for the time d0.
func simulate(t *testing.T, l quota.Limit, d demand, w way, d0 time.Duration) *outcome {
	ctx, cancel := context.WithCancel(t.Context())
	central, start, o := weirtest.Memory(), time.Now(), &outcome{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, trip := range trips {
		far := &weirtest.Distant{Store: central}
		far.Trip.Store(int64(trip))
		store := w.open(ctx, i, far)
		r := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for {
				time.Sleep(time.Duration(r.ExpFloat64() / d.rate(i, time.Since(start)) * 1e9))
				if time.Since(start) > d0 {
					return
				}
				wg.Go(func() {
					tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Limit: l, Cost: 1}}}
					sent := time.Now()
					if err := store.Take(ctx, tx); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					o.asked++
					o.waits = append(o.waits, time.Since(sent))
					if tx.Allowed() {
						o.admitted = append(o.admitted, tx.At.UnixMicro())
					}
				})
			}
		})
	}
	wg.Wait()
	cancel()
	time.Sleep(time.Minute) // until calls that have begun end
	slices.Sort(o.admitted)
	slices.Sort(o.waits)
	return o
}

// worst returns the most units that were admitted in any time d, minus quota·d/period. The
// result is at most the burst if the limit holds. Units at both ends of the time count.
func (o *outcome) worst(l quota.Limit) float64 {
	perMicro := float64(l.Quota) / float64(l.Period.Microseconds())
	worst, least := 0.0, 0.0
	for i, at := range o.admitted {
		before := float64(i) - perMicro*float64(at-o.admitted[0])
		if i == 0 || before < least {
			least = before
		}
		worst = max(worst, before+1-least)
	}
	return worst
}

// far returns how many requests waited for an answer of the central store.
func (o *outcome) far() (n int) {
	for _, wait := range o.waits {
		if wait > 0 {
			n++
		}
	}
	return n
}

// TestRegions: all regions together admit no more than one store would, with each way and
// demand. With package regions no request waits, and at least 90 % of the units are admitted
// that one store would admit. With WEIR_LONG the log has the figures of contrib/regions/README.md, of
// the other ways as well.
func TestRegions(t *testing.T) {
	l := algorithms.GCRA(100, time.Second).WithBurst(150)
	const long = 5 * time.Minute
	for _, d := range demands {
		for _, w := range ways {
			if w.name != "regions" && !rounds.Long() {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				o := simulate(t, l, d, w, long)
				far, could := o.far(), min(o.asked, int(100*long.Seconds()))
				worst, used := o.worst(l), 100*float64(len(o.admitted))/float64(could)
				t.Logf("%-26s %-30s used %5.1f %%, waits %5.1f %%, p99 %3d ms, surplus %5.1f", d.name, w.name, used, 100*float64(far)/float64(o.asked), o.waits[len(o.waits)*99/100].Milliseconds(), worst)
				if worst > float64(l.Burst)+1e-3 {
					t.Errorf("%s, %s: got %.1f more than the rate allows, want the burst at most", d.name, w.name, worst)
				}
				if w.name == "regions" && (used < 90 || far > 0) {
					t.Errorf("%s: %.1f %% of the units are admitted and %d requests wait, want 90 %% or more and 0", d.name, used, far)
				}
			})
		}
	}
}

// TestAnnounce: a Limiter announces its limits to the local store through the Store.
func TestAnnounce(t *testing.T) {
	local := &announced{Store: weirtest.Memory()}
	for _, s := range []quota.Store{local, weirtest.Memory()} {
		_, err := weir.New(regions.New(s, weirtest.Memory(), regions.Options{Budget: "b", Region: "eu", Regions: 2}), weir.Options{
			Rules: []weir.Rule{{Name: "r", Key: weir.Global(), Limits: []quota.Limit{algorithms.GCRA(100, time.Second)}}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(local.limits) != 1 || local.limits[0].Quota != 100 {
		t.Errorf("got limits %v of rule r, want the one of all regions", local.limits)
	}
}

type announced struct {
	quota.Store
	limits []quota.Limit
}

func (a *announced) Announce(_ string, limits []quota.Limit) { a.limits = limits }

// TestNilStores: a nil pointer is no store, so New panics, not the first request.
func TestNilStores(t *testing.T) {
	missing := (*memstore.Store)(nil)
	for want, stores := range map[string][2]quota.Store{
		"regions: local is nil":   {missing, weirtest.Memory()},
		"regions: central is nil": {weirtest.Memory(), missing},
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got panic %v, want %s", got, want)
				}
			}()
			regions.New(stores[0], stores[1], regions.Options{Budget: "b", Region: "eu", Regions: 2})
		}()
	}
}

// TestWithoutRun: a store whose Run is not called says so once, when its first interval has passed.
func TestWithoutRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			regions int
			run     bool
			want    int
		}{{2, false, 1}, {2, true, 0}, {1, false, 0}} {
			var log weirtest.Log
			s := regions.New(weirtest.Memory(), weirtest.Memory(), regions.Options{Budget: "b", Region: "eu", Regions: tt.regions, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			ctx, cancel := context.WithCancel(t.Context())
			if tt.run {
				go s.Run(ctx)
			}
			for range 5 {
				quota.Allow(ctx, s, quota.Charge{Rule: "api", Key: "k", Limit: algorithms.GCRA(100, time.Second), Cost: 1})
				time.Sleep(time.Second)
			}
			cancel()
			if got := strings.Count(log.String(), "regions: method Run not called"); got != tt.want {
				t.Errorf("%+v: got %d lines:\n%s", tt, got, log.String())
			}
		}
	})
}

// TestRegionsRedis: with Redis as the central store, a region that asks gets nearly all of
// the rate, and a region that does not ask has half of it at most.
func TestRegionsRedis(t *testing.T) {
	addr := redistest.Server(t).Addr()
	var stores [2]*regions.Store
	for i := range stores {
		stores[i] = regions.New(weirtest.Memory(), weirtest.Redis(t, addr, 5*time.Second), regions.Options{Budget: "b", Region: fmt.Sprint(i), Regions: 2, Every: 200 * time.Millisecond})
		go stores[i].Run(t.Context())
	}
	l := algorithms.GCRA(1000, time.Second)
	for begun := time.Now(); stores[0].Part() < 0.9; time.Sleep(time.Millisecond) {
		weirtest.Take(t, stores[0], 0, quota.Charge{Rule: "r", Limit: l, Cost: 1})
		if time.Since(begun) > 3*time.Minute {
			t.Fatalf("after three minutes the region that asks has the part %v, and the other region %v", stores[0].Part(), stores[1].Part())
		}
	}
	if got := stores[1].Part(); got > 0.5 {
		t.Errorf("a region that does not ask has the part %v", got)
	}
}

// TestRegionsConform: a Store with one region passes the tests of package storetest.
func TestRegionsConform(t *testing.T) {
	weirtest.Conforms(t, func() quota.Store {
		return regions.New(weirtest.Memory(), weirtest.Memory(), regions.Options{Budget: "b", Region: "eu", Regions: 1})
	})
}

// TestHeadroomOfRegion: a region leaves its part of a headroom, rounded up.
func TestHeadroomOfRegion(t *testing.T) {
	local := memstore.New(memstore.Options{})
	eu := regions.New(local, local, regions.Options{Budget: "gpu", Region: "eu", Regions: 4})
	for _, l := range []quota.Limit{algorithms.GCRA(40, time.Hour), algorithms.FixedWindow(40, 1000*time.Hour)} {
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "k", Limit: l, Cost: 1, Headroom: 13}}, Mode: quota.ModeAtMost, Most: 100}
		if err := eu.Take(t.Context(), &tx); err != nil || tx.Granted != 6 || tx.Charges[0].Headroom != 13 {
			t.Errorf("%v: got %d of 10 units and %v, want all but 4", l, tx.Granted, err)
		}
	}
}

// TestHeadroomOfSmallRegion: a class that a limit admits is admitted by a region with a small part of it.
func TestHeadroomOfSmallRegion(t *testing.T) {
	local := memstore.New(memstore.Options{})
	eu := regions.New(local, local, regions.Options{Budget: "gpu", Region: "eu", Regions: 5})
	for _, l := range []quota.Limit{algorithms.GCRA(5, time.Hour), algorithms.FixedWindow(5, 1000*time.Hour), algorithms.InFlight(5, time.Hour)} {
		for headroom, want := range map[int64]bool{3: true, 5: false} {
			c := quota.Charge{Rule: "api", Key: fmt.Sprint(headroom), Limit: l, Cost: 1, Headroom: headroom}
			if d, err := quota.Allow(t.Context(), eu, c); err != nil || d.Allowed != want {
				t.Errorf("%v with a headroom of %d: got %v and %v, want %v", l, headroom, d.Allowed, err, want)
			}
		}
	}
}

func ExampleNew() {
	ctx, stop := context.WithCancel(context.Background())
	central := memstore.New(memstore.Options{}) // a Redis that all regions reach
	eu := regions.New(memstore.New(memstore.Options{}), central, regions.Options{Budget: "model", Region: "eu", Regions: 3})
	ended := make(chan error)
	go func() { ended <- eu.Run(ctx) }()

	d, err := quota.Allow(ctx, eu, quota.Charge{Rule: "model", Limit: algorithms.GCRA(3000, time.Minute), Cost: 1})
	fmt.Println(d.Remaining, err) // of a burst of 1,000
	fmt.Println(eu.Part() > 0)
	stop()
	<-ended
	// Output:
	// 999 <nil>
	// true
}

// TestParts checks the part of a region without Run, while the central store is down, and
// after some seconds of requests.
func TestParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var down atomic.Bool
		central := weirtest.Memory()
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil)) // shared by both regions, because its lock guards log
		reach := weirtest.StoreFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if down.Load() {
				return weirtest.ErrDown
			}
			return central.Take(ctx, tx)
		})
		open := func(region string) *regions.Store {
			return regions.New(weirtest.Memory(), reach, regions.Options{Budget: "b", Region: region, Regions: 2, Logger: logger})
		}
		eu, us := open("eu"), open("us")
		if eu.Part() != 0.05 {
			t.Errorf("without Run: got the part %v, want 0.05", eu.Part())
		}
		go eu.Run(ctx)
		go us.Run(ctx)
		ask := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				eu.Take(ctx, weirtest.Once(algorithms.GCRA(100, time.Second)))
			}
		}
		ask(20 * time.Second)
		if eu.Part() < 0.9 || eu.Part()+us.Part() > 1 {
			t.Errorf("only eu asks: got the parts %v and %v, want 0.9 or more, and 1 together at most", eu.Part(), us.Part())
		}
		down.Store(true)
		ask(11 * time.Second)
		synctest.Wait()
		if eu.Part() != 0.05 || strings.Count(log.String(), "failed") != 2 {
			t.Errorf("the central store is down: got the part %v, want 0.05; log %s", eu.Part(), &log)
		}
		down.Store(false)
		ask(20 * time.Second)
		synctest.Wait()
		if eu.Part() < 0.9 || strings.Count(log.String(), "answers again") != 2 {
			t.Errorf("the central store is back: got the part %v, want 0.9 or more; log %s", eu.Part(), &log)
		}
		checkHalves(t, eu)
		cancel()
		synctest.Wait()
	})
}

// checkHalves takes a unit under limits that two regions share in halves.
func checkHalves(t *testing.T, eu *regions.Store) {
	t.Helper()
	tx := weirtest.Once(algorithms.SlidingWindow(101, time.Hour))
	if eu.Take(t.Context(), tx); tx.Decisions[0].Remaining != 49 || tx.Charges[0].Limit.Quota != 101 {
		t.Errorf("a window: got %+v, want half of the quota", tx)
	}
	tx = weirtest.Once(algorithms.GCRA(1_000_000, 24*time.Hour)) // can be counted because quota and period have a common divisor
	if err := eu.Take(t.Context(), tx); err != nil || tx.Decisions[0].Remaining != 499_999 {
		t.Errorf("a million a day: got %+v, %v", tx, err)
	}
}
