package weir_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
)

// A ledger is the slow definition of a limit: every charge of a key that is held.
type ledger struct {
	limit weir.Limit
	held  []*holding
}

// A holding is what was charged at an instant. Units that were given back out of turn
// are gone: the limit may count them or not.
type holding struct{ at, n, gone int64 }

// used returns what counts at t, at least and at most.
func (g *ledger) used(t int64) (least, most int64) {
	period := g.limit.Period.Microseconds()
	for _, h := range g.held {
		counts := h.at > t-period && h.at <= t
		if g.limit.Algorithm.Name() == "fixed-window" {
			counts = h.at/period == t/period
		}
		if counts {
			least, most = least+h.n, most+h.n+h.gone
		}
	}
	return least, most
}

// fits reports whether n units may fit at t, and whether they must.
func (g *ledger) fits(t, n int64) (may, must bool) {
	least, most := g.used(t)
	may, must = least+n <= g.limit.Quota, most+n <= g.limit.Quota
	for _, h := range g.held { // nobody overtakes
		may = may && (h.at <= t || h.n == 0)
		must = must && h.at <= t
	}
	return may, must
}

// free returns the least and the most that may be left at t.
func (g *ledger) free(t int64) (least, most int64) {
	for n := int64(1); n <= g.limit.Quota; n++ {
		may, must := g.fits(t, n)
		if may {
			most = n
		}
		if must {
			least = n
		}
	}
	return least, most
}

// A book has the ledgers of a key.
type book []*ledger

func (b book) fits(t, n int64) (may, must bool) {
	may, must = true, true
	for _, g := range b {
		can, has := g.fits(t, n)
		may, must = may && can, must && has
	}
	return may, must
}

// earliest returns when n units fit: at the first instant at which they may, and at
// which they must.
func (b book) earliest(now, n int64) (may, must int64) {
	instants := []int64{now}
	for _, g := range b {
		period := g.limit.Period.Microseconds()
		for _, h := range g.held {
			instants = append(instants, h.at, h.at+period, (h.at/period+1)*period)
		}
	}
	slices.Sort(instants)
	may, must = -1, -1
	for _, at := range instants {
		if at < now {
			continue
		}
		can, has := b.fits(at, n)
		if can && may < 0 {
			may = at
		}
		if has && must < 0 {
			must = at
		}
	}
	return may, must
}

func (b book) spend(at, n int64) (hs []*holding) {
	for _, g := range b {
		h := &holding{at: at, n: n}
		g.held = append(g.held, h)
		hs = append(hs, h)
	}
	return hs
}

// A world is a store under random use, beside the books that say what it may do.
type world struct {
	*testing.T
	r         *rand.Rand
	plain     *memstore.Store
	limits    []weir.Limit
	books     map[string]book
	decisions int
	log       []string
	mu        sync.Mutex // of what requests on their own touch
}

func newWorld(t *testing.T, r *rand.Rand, limits ...weir.Limit) *world {
	w := &world{T: t, r: r, plain: memstore.New(memstore.Options{}), limits: limits, books: map[string]book{}}
	for _, key := range []string{"a", "b"} {
		for _, l := range limits {
			w.books[key] = append(w.books[key], &ledger{limit: l})
		}
	}
	return w
}

func now() int64 { return time.Now().UnixMicro() }

func (w *world) key() string { return []string{"a", "b"}[w.r.IntN(2)] }

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%d ", now()%1e10)+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.Helper()
	w.Fatalf("%v\n%s\n%d: %s", w.limits, strings.Join(w.log[max(0, len(w.log)-40):], "\n"), now()%1e10, fmt.Sprintf(format, args...))
}

func (w *world) charges(key string, cost int64) (charges []weir.Charge) {
	for _, l := range w.limits {
		charges = append(charges, weir.Charge{Rule: "r", Key: key, Limit: l, Cost: cost})
	}
	return charges
}

// sleep passes the time: a little, a lot, and to where windows change.
func (w *world) sleep() {
	period := w.limits[w.r.IntN(len(w.limits))].Period
	steps := []time.Duration{0, 0, time.Microsecond, time.Duration(w.r.Int64N(int64(period))), period / 7, period - time.Microsecond, period,
		time.Duration(period.Microseconds()-now()%period.Microseconds()) * time.Microsecond}
	time.Sleep(steps[w.r.IntN(len(steps))].Truncate(time.Microsecond))
	synctest.Wait()
}

// remains holds what the store says is left against the books.
func (w *world) remains() {
	w.Helper()
	for key, b := range w.books {
		t, err := weir.Peek(context.Background(), w.plain, w.charges(key, 0)...)
		if err != nil {
			w.fail("%v", err)
		}
		for i, g := range b {
			if least, most := g.free(now()); t.Decisions[i].Remaining < least || t.Decisions[i].Remaining > most {
				w.fail("%s, %v: got %d remaining, want %d to %d", key, g.limit, t.Decisions[i].Remaining, least, most)
			}
		}
	}
}

// idle passes time until nothing counts any more: all must be free.
func (w *world) idle() {
	w.Helper()
	longest, last := time.Duration(0), now()
	for _, l := range w.limits {
		longest = max(longest, l.Period)
	}
	for _, b := range w.books {
		for _, g := range b {
			for _, h := range g.held {
				last = max(last, h.at)
			}
		}
	}
	time.Sleep(time.Until(time.UnixMicro(last)) + longest)
	w.remains()
}

// exactLimits are those that the books define: one, or two that are charged together.
func exactLimits(r *rand.Rand) []weir.Limit {
	period := func() time.Duration { return time.Duration(1+r.Int64N(20)) * time.Second }
	limits := []weir.Limit{algorithms.SlidingLog(1+r.Int64N(12), period()).Named("log"), algorithms.FixedWindow(1+r.Int64N(12), period()).Named("window")}
	if i := r.IntN(3); i < 2 {
		limits = limits[i : i+1]
	}
	return limits
}

// turns reserves turns and cancels some: each request waits exactly as long as the
// books say, or, where turns before it were cancelled out of order, no longer than if
// they were kept.
func turns(t *testing.T, r *rand.Rand) int {
	w := newWorld(t, r, exactLimits(r)...)
	type turn struct {
		key string
		*weir.Reservation
		hs    []*holding
		after int // cancellations out of order
	}
	var line []turn
	cancelled := map[string]int{} // out of order
	for range 60 {
		w.sleep()
		if i := len(line) - 1; i >= 0 && r.IntN(3) == 0 {
			if r.IntN(3) == 0 {
				i = r.IntN(len(line))
			}
			c := line[i]
			last := c.after == cancelled[c.key] && !slices.ContainsFunc(line[i+1:], func(d turn) bool { return d.key == c.key })
			line = slices.Delete(line, i, i+1)
			if c.Delay() == 0 {
				continue
			}
			w.note("cancel %s of %d, last %v", c.key, c.hs[0].at%1e10, last)
			if err := c.Cancel(t.Context()); err != nil {
				w.fail("%v", err)
			}
			if !last {
				cancelled[c.key]++
			}
			for _, h := range c.hs {
				if !last {
					h.gone = h.n
				}
				h.n = 0
				if last { // as if it had never been
					h.at = 0
				}
			}
			continue
		}
		w.decisions++
		key, cost, within := w.key(), 1+r.Int64N(4), time.Duration(r.Int64N(60e6))*time.Microsecond
		most := cost
		for _, l := range w.limits {
			most = min(most, l.Quota)
		}
		cost = most
		may, must := w.books[key].earliest(now(), cost)
		res, err := weir.Reserve(t.Context(), w.plain, within, w.charges(key, cost)...)
		var wait time.Duration
		var limited *weir.LimitedError
		switch {
		case err == nil:
			wait = res.Delay()
			w.note("%s: %d wait %v", key, cost, wait)
			line = append(line, turn{key, res, w.books[key].spend(now()+wait.Microseconds(), cost), cancelled[key]})
		case errors.As(err, &limited):
			wait = limited.RetryAfter()
			w.note("%s: %d refused within %v, retry after %v", key, cost, within, wait)
			if wait <= within {
				w.fail("refused")
			}
		default:
			w.fail("%v", err)
		}
		if at := now() + wait.Microseconds(); at < may || at > must {
			w.fail("%s waits %v, want %d to %d µs", key, wait, may-now(), must-now())
		}
	}
	w.idle()
	return w.decisions
}

// settlements serves requests whose costs are known when they have ended: a request is
// served exactly if its Cost fits, and what remains is what others have cost.
func settlements(t *testing.T, r *rand.Rand) int { return settling(t, r, exactLimits(r), false) }

// leasedSettlements is the same over leases, which may refuse more until they end.
func leasedSettlements(t *testing.T, r *rand.Rand) int {
	return settling(t, r, []weir.Limit{algorithms.FixedWindow(100+r.Int64N(300), time.Duration(1+r.Int64N(5))*time.Second).Named("l")}, true)
}

func settling(t *testing.T, r *rand.Rand, limits []weir.Limit, leased bool) int {
	w := newWorld(t, r, limits...)
	var store weir.Store = w.plain
	var leases *lease.Store
	if leased {
		leases = lease.New(w.plain, lease.Options{})
		store = leases
	}
	const cost = 3
	type request struct {
		key    string
		hs     []*holding
		finish chan int64
		served bool
	}
	l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "r", Key: weir.ByHeader("Key"), Limits: limits,
		Cost:   func(*http.Request) int64 { return cost },
		Settle: func(o weir.Outcome) int64 { return o.Used },
	}}})
	var running []*request
	h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		q := r.Context().Value(inWorld{}).(*request)
		q.served = true
		weir.ReportUsage(r.Context(), <-q.finish)
	}))
	burst := func(leased bool) int {
		if leased {
			return 1 + r.IntN(60)
		}
		return 1
	}
	finish := func(i int) {
		q := running[i]
		running = slices.Delete(running, i, i+1)
		used := r.Int64N(cost + 1)
		if !leased {
			used = r.Int64N(2 * cost)
		}
		w.note("%s: %d of %d used", q.key, used, q.hs[0].at%1e10)
		excess := used - cost
		if excess > 0 {
			w.books[q.key].spend(now(), excess)
		} else {
			for _, h := range q.hs {
				h.n += excess
			}
		}
		q.finish <- used
		synctest.Wait()
	}
	for range 60 {
		w.sleep()
		if n := len(running); n > 0 && r.IntN(2) == 0 {
			finish(r.IntN(n))
			if !leased {
				w.remains()
			}
			continue
		}
		key := w.key()
		for range burst(leased) {
			w.decisions++
			q := &request{key: key, finish: make(chan int64)}
			_, want := w.books[key].fits(now(), cost)
			req := ask("/", "192.0.2.1:4", "Key", key)
			go h.ServeHTTP(httptest.NewRecorder(), req.WithContext(context.WithValue(req.Context(), inWorld{}, q)))
			synctest.Wait()
			w.note("%s: %v", key, q.served)
			if q.served && !want || !leased && !q.served && want {
				w.fail("%s: served %v, want %v", key, q.served, want)
			}
			if q.served {
				q.hs = w.books[key].spend(now(), cost)
				running = append(running, q)
			}
			if leased {
				time.Sleep(time.Duration(r.Int64N(1000)) * time.Microsecond)
			}
		}
	}
	for len(running) > 0 {
		finish(0)
	}
	if leased {
		if err := leases.Close(t.Context()); err != nil {
			w.fail("%v", err)
		}
		hits += leases.Stats().Hits
	}
	w.remains()
	w.idle()
	return w.decisions
}

type inWorld struct{}

var hits uint64 // of leases, in all worlds

// replicas lease units and use them, beside a process without leases: no more is used
// than the books allow, and when all is given back nothing is missing.
func replicas(t *testing.T, r *rand.Rand) int {
	w := newWorld(t, r, algorithms.FixedWindow(100+r.Int64N(1000), time.Duration(100+r.Int64N(400))*time.Millisecond).Named("l"))
	stores := []weir.Store{w.plain}
	for range 2 {
		stores = append(stores, lease.New(w.plain, lease.Options{Fraction: []float64{0, 0.5, 1}[r.IntN(3)]}))
	}
	for range 20 {
		w.sleep()
		key, i := w.key(), 1+r.IntN(len(stores)-1)
		for range 1 + r.IntN(200) {
			w.decisions++
			time.Sleep(time.Duration(r.Int64N(2000)) * time.Microsecond)
			store, cost := stores[i], 1+r.Int64N(2)
			if r.IntN(20) == 0 { // the one without leases takes all that is left
				store, cost = w.plain, max(1, take(t, w.plain, 0, w.charges(key, 0)...).Decisions[0].Remaining)
			}
			may, _ := w.books[key].fits(now(), cost)
			tx := take(t, store, 0, w.charges(key, cost)...)
			if tx.Allowed() {
				w.books[key].spend(now(), cost)
			}
			if tx.Allowed() && !may {
				w.fail("%s: allowed beyond the limit", key)
			}
		}
	}
	for _, s := range stores[1:] {
		if err := s.(*lease.Store).Close(t.Context()); err != nil {
			w.fail("%v", err)
		}
		hits += s.(*lease.Store).Stats().Hits
	}
	w.remains()
	w.idle()
	return w.decisions
}

// pauses sends requests whose answers pause the keys, and whose callers give up now
// and then: nothing is sent beyond the limit or in a pause, what fits is sent at once,
// and nothing is lost.
func pauses(t *testing.T, r *rand.Rand) int {
	w := newWorld(t, r, exactLimits(r)...)
	const most = 40 * time.Second
	paused, since := map[string]int64{}, map[string]int64{} // by key, and since when
	l := must(t, w.plain, weir.Options{MaxWait: most, MaxPause: 30 * time.Second, Rules: []weir.Rule{{Name: "r", Key: weir.ByHeader("Key"), Limits: w.limits}}})
	client := &http.Client{Transport: l.Transport(roundTrip(func(q *http.Request) (*http.Response, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		key := q.Header.Get("Key")
		w.note("%s: sent", key)
		w.decisions++
		if may, _ := w.books[key].fits(now(), 1); !may || now() > since[key] && now() < paused[key] {
			w.Errorf("%v\n%s\n%s is sent, fits %v, %d µs before the pause is over", w.limits, strings.Join(w.log, "\n"), key, may, paused[key]-now())
		}
		w.books[key].spend(now(), 1)
		res := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: q}
		if r.IntN(6) == 0 {
			wait := 1 + r.Int64N(40)
			res.StatusCode = []int{429, 503}[r.IntN(2)]
			res.Header.Set("Retry-After", strconv.FormatInt(wait, 10))
			if end := now() + min(wait, 30)*1e6; end > paused[key] {
				paused[key], since[key] = end, now() // what was on its way goes
			}
			w.note("%s: paused for %d s", key, wait)
		}
		return res, nil
	}))}
	var wg sync.WaitGroup
	var cancels []context.CancelFunc
	underWay := map[string]int{} // by key
	patient := r.IntN(2) == 0    // nobody gives up, which may hold up others until the turn would have come
	for range 40 {
		w.mu.Lock()
		d := time.Duration(r.Int64N(3e6)) * time.Microsecond
		key, giveUp := w.key(), !patient && r.IntN(4) == 0
		w.mu.Unlock()
		time.Sleep(d)
		if giveUp && len(cancels) > 0 {
			w.mu.Lock() // of r: a request may be answered meanwhile
			abandon := cancels[r.IntN(len(cancels))]
			w.mu.Unlock()
			abandon()
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancels = append(cancels, cancel)
		_, must := w.books[key].fits(now(), 1)
		if underWay[key] == 0 && len(w.limits) == 1 && w.limits[0].Name == "log" { // of a window that turns were taken in less may be left
			least, _ := w.books[key][0].free(now())
			if left := take(t, w.plain, 0, w.charges(key, 0)...).Decisions[0].Remaining; left != least && left > 0 { // 0 up to a turn that was cancelled
				w.fail("%s: got %d remaining, want %d", key, left, least)
			}
		}
		must = must && patient && underWay[key] == 0 && now() >= paused[key]
		underWay[key]++
		before := w.decisions
		wg.Go(func() {
			defer func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				underWay[key]--
			}()
			q, _ := http.NewRequestWithContext(ctx, "GET", "http://192.0.2.1/", nil)
			q.Header.Set("Key", key)
			if res, err := client.Do(q); err == nil {
				res.Body.Close()
			} else if limited := new(weir.LimitedError); !errors.As(err, &limited) && !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
		synctest.Wait()
		w.mu.Lock()
		sent := w.decisions > before
		w.mu.Unlock()
		if must && !sent {
			w.fail("%s is not sent, which fits", key)
		}
	}
	wg.Wait()
	for _, cancel := range cancels {
		cancel()
	}
	w.idle()
	time.Sleep(most + 20*time.Second)
	w.remains()
	return w.decisions
}

// TestLayers is TestOracle for what stands on the arithmetic: schedules at random of
// turns that are cancelled, of costs that are known afterwards, of leases and of pauses
// are held against books of what was spent and when. WEIR_ORACLE=1000000 makes as many
// decisions as that.
func TestLayers(t *testing.T) {
	decisions := 50_000
	if testing.Short() {
		decisions = 5000
	}
	if n, err := strconv.Atoi(os.Getenv("WEIR_ORACLE")); err == nil {
		decisions = n
	}
	for _, layer := range []struct {
		name string
		run  func(*testing.T, *rand.Rand) int
	}{
		{"turns", turns}, {"settle", settlements}, {"lease", replicas}, {"settle over lease", leasedSettlements}, {"transport", pauses},
	} {
		t.Run(layer.name, func(t *testing.T) {
			hits = 0
			for n := 0; n < decisions/5; {
				seed := rand.Uint64()
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(time.Duration(seed%3600e6) * time.Microsecond)
					n += layer.run(t, rand.New(rand.NewPCG(seed, 15)))
				})
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if strings.Contains(layer.name, "lease") && hits == 0 {
				t.Error("no lease was used")
			}
		})
	}
}
