package weir_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A ledger is the slow definition of a limit: it keeps every charge of a key.
type ledger struct {
	limit weir.Limit
	held  []*holding
}

// A holding is n units that were charged at an instant. gone counts the units of a turn
// that was cancelled although it was not the last turn: the limit may count these units or
// not.
type holding struct{ at, n, gone int64 }

// used returns the least and the most units that may count at the instant t.
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

// fits reports whether n units may fit at the instant t, and whether they must.
func (g *ledger) fits(t, n int64) (may, must bool) {
	least, most := g.used(t)
	may, must = least+n <= g.limit.Quota, most+n <= g.limit.Quota
	for _, h := range g.held { // no charge overtakes a reserved turn
		may = may && (h.at <= t || h.n == 0)
		must = must && h.at <= t
	}
	return may, must
}

// free returns the fewest and the most units that may be left at the instant t.
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

// A book has one ledger for each limit of a key.
type book []*ledger

func (b book) fits(t, n int64) (may, must bool) {
	may, must = true, true
	for _, g := range b {
		can, has := g.fits(t, n)
		may, must = may && can, must && has
	}
	return may, must
}

// earliest returns the first instant at which n units may fit, and the first at which they
// must.
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

// A world is a store under random use, with books of what the store may and must do.
type world struct {
	*testing.T
	r         *rand.Rand
	plain     *memstore.Store
	limits    []weir.Limit
	books     map[string]book
	decisions int
	log       []string
	mu        sync.Mutex // guards what concurrent requests use
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

func (w *world) charges(key string, cost int64) (charges []quota.Charge) {
	for _, l := range w.limits {
		charges = append(charges, quota.Charge{Rule: "r", Key: key, Limit: l, Cost: cost})
	}
	return charges
}

// sleep sleeps for a short or a long time, or until a window ends.
func (w *world) sleep() {
	period := w.limits[w.r.IntN(len(w.limits))].Period
	steps := []time.Duration{0, 0, time.Microsecond, time.Duration(w.r.Int64N(int64(period))), period / 7, period - time.Microsecond, period,
		time.Duration(period.Microseconds()-now()%period.Microseconds()) * time.Microsecond}
	time.Sleep(steps[w.r.IntN(len(steps))].Truncate(time.Microsecond))
	synctest.Wait()
}

// remains compares the Remaining that the store returns with the books.
func (w *world) remains() {
	w.Helper()
	for key, b := range w.books {
		t, err := quota.Peek(context.Background(), w.plain, w.charges(key, 0)...)
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

// idle sleeps until no unit counts any more, and expects that all units are free.
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

// exactLimits returns a sliding log, a fixed window or both, with random numbers: the
// limits that a ledger defines.
func exactLimits(r *rand.Rand) []weir.Limit {
	period := func() time.Duration { return time.Duration(1+r.Int64N(20)) * time.Second }
	limits := []weir.Limit{algorithms.SlidingLog(1+r.Int64N(12), period()).Named("log"), algorithms.FixedWindow(1+r.Int64N(12), period()).Named("window")}
	if i := r.IntN(3); i < 2 {
		limits = limits[i : i+1]
	}
	return limits
}

// A turn is a reservation for a key, with its holdings in the books.
type turn struct {
	key string
	*quota.Reservation
	hs    []*holding
	after int // how many turns of the key had been cancelled out of order when it was reserved
}

// A turnWorld is a world with turns that are reserved and cancelled.
type turnWorld struct {
	*world
	line      []turn
	cancelled map[string]int // how many turns were cancelled out of order, by key
}

// turns reserves turns and cancels some of them. Each request must wait exactly as long as
// the books say. If earlier turns were cancelled out of order, the request may wait longer,
// but no longer than if those turns had been kept.
func turns(t *testing.T, r *rand.Rand) int {
	w := &turnWorld{world: newWorld(t, r, exactLimits(r)...), cancelled: map[string]int{}}
	for range 60 {
		w.sleep()
		if len(w.line) > 0 && r.IntN(3) == 0 {
			w.cancelOne()
		} else {
			w.reserveOne()
		}
	}
	w.idle()
	return w.decisions
}

// cancelOne cancels the last turn or, once in three times, any turn.
func (w *turnWorld) cancelOne() {
	w.Helper()
	i := len(w.line) - 1
	if w.r.IntN(3) == 0 {
		i = w.r.IntN(len(w.line))
	}
	c := w.line[i]
	last := c.after == w.cancelled[c.key] && !slices.ContainsFunc(w.line[i+1:], func(d turn) bool { return d.key == c.key })
	w.line = slices.Delete(w.line, i, i+1)
	if c.Delay() == 0 {
		return
	}
	w.note("cancel %s of %d, last %v", c.key, c.hs[0].at%1e10, last)
	if err := c.Cancel(w.Context()); err != nil {
		w.fail("%v", err)
	}
	if !last {
		w.cancelled[c.key]++
	}
	for _, h := range c.hs {
		if last { // as if the turn had never been reserved
			h.at = 0
		} else {
			h.gone = h.n
		}
		h.n = 0
	}
}

// reserveOne reserves a turn, and compares its wait, or the RetryAfter of its refusal, with
// the books.
func (w *turnWorld) reserveOne() {
	w.Helper()
	w.decisions++
	key, cost, within := w.key(), 1+w.r.Int64N(4), time.Duration(w.r.Int64N(60e6))*time.Microsecond
	for _, l := range w.limits {
		cost = min(cost, l.Quota)
	}
	may, must := w.books[key].earliest(now(), cost)
	res, err := quota.Reserve(w.Context(), w.plain, within, w.charges(key, cost)...)
	var wait time.Duration
	var limited *quota.LimitedError
	switch {
	case err == nil:
		wait = res.Delay()
		w.note("%s: %d wait %v", key, cost, wait)
		w.line = append(w.line, turn{key, res, w.books[key].spend(now()+wait.Microseconds(), cost), w.cancelled[key]})
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

// settlements serves requests whose final costs are known when they have ended. A request
// must be served if and only if its Cost fits, and Remaining must follow from the final
// costs.
func settlements(t *testing.T, r *rand.Rand) int { return settling(t, r, exactLimits(r), false) }

// leasedSettlements does what settlements does, through package lease, which may refuse
// more requests until the leases end.
func leasedSettlements(t *testing.T, r *rand.Rand) int {
	return settling(t, r, []weir.Limit{algorithms.FixedWindow(100+r.Int64N(300), time.Duration(1+r.Int64N(5))*time.Second).Named("l")}, true)
}

// A request of a settleWorld ends when finish receives the units that it has used.
type request struct {
	key    string
	hs     []*holding
	finish chan int64
	served bool
}

// A settleWorld is a world with requests that reserve settledCost units until they end.
type settleWorld struct {
	*world
	h       http.Handler
	leased  bool
	running []*request
}

const settledCost = 3

func settling(t *testing.T, r *rand.Rand, limits []weir.Limit, leased bool) int {
	w := &settleWorld{world: newWorld(t, r, limits...), leased: leased}
	var store weir.Store = w.plain
	var leases *lease.Store
	if leased {
		leases = lease.New(w.plain, lease.Options{})
		store = leases
	}
	w.h = must(t, store, weir.Options{Rules: []weir.Rule{{Name: "r", Key: weir.ByHeader("Key"), Limits: limits,
		Cost:   func(*http.Request) int64 { return settledCost },
		Settle: func(o weir.Outcome) int64 { return o.Used },
	}}}).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		q := r.Context().Value(inWorld{}).(*request)
		q.served = true
		weir.ReportUsage(r.Context(), "requests", <-q.finish)
	}))
	for range 60 {
		w.sleep()
		if n := len(w.running); n > 0 && r.IntN(2) == 0 {
			w.finish(r.IntN(n))
			if !leased {
				w.remains()
			}
			continue
		}
		w.burst(w.key())
	}
	for len(w.running) > 0 {
		w.finish(0)
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

// burst sends one request, or up to 60 if there are leases.
func (w *settleWorld) burst(key string) {
	w.Helper()
	if !w.leased {
		w.send(key)
		return
	}
	for range 1 + w.r.IntN(60) {
		w.send(key)
		time.Sleep(time.Duration(w.r.Int64N(1000)) * time.Microsecond)
	}
}

// send sends a request, and checks with the books whether it must be served.
func (w *settleWorld) send(key string) {
	w.Helper()
	w.decisions++
	q := &request{key: key, finish: make(chan int64)}
	_, want := w.books[key].fits(now(), settledCost)
	req := ask("/", "192.0.2.1:4", "Key", key)
	go w.h.ServeHTTP(httptest.NewRecorder(), req.WithContext(context.WithValue(req.Context(), inWorld{}, q)))
	synctest.Wait()
	w.note("%s: %v", key, q.served)
	if q.served && !want || !w.leased && !q.served && want {
		w.fail("%s: served %v, want %v", key, q.served, want)
	}
	if q.served {
		q.hs = w.books[key].spend(now(), settledCost)
		w.running = append(w.running, q)
	}
}

// finish ends a request. It has used at most its cost or, if there are no leases, perhaps
// more.
func (w *settleWorld) finish(i int) {
	q := w.running[i]
	w.running = slices.Delete(w.running, i, i+1)
	used := w.r.Int64N(settledCost + 1)
	if !w.leased {
		used = w.r.Int64N(2 * settledCost)
	}
	w.note("%s: %d of %d used", q.key, used, q.hs[0].at%1e10)
	excess := used - settledCost
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

type inWorld struct{}

var hits int64 // decisions from leased units, in all worlds

// replicas simulates two processes that lease units, and one process without leases.
// Together they must never use more than the books allow. After the lease stores are closed,
// no units may be missing.
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
			if r.IntN(20) == 0 { // the process without leases takes all units that are left
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

// A pauseWorld sends requests to a partner whose answers pause some keys.
type pauseWorld struct {
	*world
	client        *http.Client
	paused, since map[string]int64 // until when and since when a key is paused
	underWay      map[string]int   // requests that have not returned, by key
	patient       bool             // no caller gives up; a turn that was given up may delay others until its instant
	cancels       []context.CancelFunc
	wg            sync.WaitGroup
}

// pauses sends requests whose responses pause the keys, and whose callers sometimes give
// up. No request may be sent beyond the limit or during a pause, a request that fits must
// be sent at once, and no units may be lost.
func pauses(t *testing.T, r *rand.Rand) int {
	const most = 40 * time.Second
	w := &pauseWorld{world: newWorld(t, r, exactLimits(r)...), paused: map[string]int64{}, since: map[string]int64{}, underWay: map[string]int{}}
	l := must(t, w.plain, weir.Options{MaxWait: most, Rules: []weir.Rule{{Name: "r", Key: weir.ByHeader("Key"), Limits: w.limits, ForKey: noPolicy}}})
	w.client = &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: roundTrip(w.answer), MaxPause: 30 * time.Second})}
	w.patient = r.IntN(2) == 0
	for range 40 {
		w.step()
	}
	w.wg.Wait()
	for _, cancel := range w.cancels {
		cancel()
	}
	w.idle()
	time.Sleep(most + 20*time.Second)
	w.remains()
	return w.decisions
}

// answer responds as the partner. It compares each request with the books, and asks for a
// pause once in six times.
func (w *pauseWorld) answer(q *http.Request) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := q.Header.Get("Key")
	w.note("%s: sent", key)
	w.decisions++
	if may, _ := w.books[key].fits(now(), 1); !may || now() > w.since[key] && now() < w.paused[key] {
		w.Errorf("%v\n%s\n%s is sent, fits %v, %d µs before the pause is over", w.limits, strings.Join(w.log, "\n"), key, may, w.paused[key]-now())
	}
	w.books[key].spend(now(), 1)
	res := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: q}
	if w.r.IntN(6) == 0 {
		wait := 1 + w.r.Int64N(40)
		res.StatusCode = []int{429, 503}[w.r.IntN(2)]
		res.Header.Set("Retry-After", strconv.FormatInt(wait, 10))
		if end := now() + min(wait, 30)*1e6; end > w.paused[key] {
			w.paused[key], w.since[key] = end, now() // requests that are sent at this instant may have been sent before the pause
		}
		w.note("%s: paused for %d s", key, wait)
	}
	return res, nil
}

// step may make a caller give up. Then it sends a request, and checks that the request goes
// out at once if it must.
func (w *pauseWorld) step() {
	w.Helper()
	w.mu.Lock()
	d := time.Duration(w.r.Int64N(3e6)) * time.Microsecond
	key, giveUp := w.key(), !w.patient && w.r.IntN(4) == 0
	w.mu.Unlock()
	time.Sleep(d)
	if giveUp && len(w.cancels) > 0 {
		w.mu.Lock() // guards r, which the answer to another request may use meanwhile
		abandon := w.cancels[w.r.IntN(len(w.cancels))]
		w.mu.Unlock()
		abandon()
	}
	synctest.Wait()
	ctx, cancel := context.WithCancel(w.Context())
	w.cancels = append(w.cancels, cancel)
	_, must := w.books[key].fits(now(), 1)
	if w.underWay[key] == 0 && len(w.limits) == 1 && w.limits[0].Name == "log" { // a fixed window in which turns were reserved may have fewer units left
		least, _ := w.books[key][0].free(now())
		if left := take(w, w.plain, 0, w.charges(key, 0)...).Decisions[0].Remaining; left != least && left > 0 { // Remaining is 0 until the instant of a cancelled turn
			w.fail("%s: got %d remaining, want %d", key, left, least)
		}
	}
	must = must && w.patient && w.underWay[key] == 0 && now() >= w.paused[key]
	w.underWay[key]++
	before := w.decisions
	w.wg.Go(func() { w.send(ctx, key) })
	synctest.Wait()
	w.mu.Lock()
	sent := w.decisions > before
	w.mu.Unlock()
	if must && !sent {
		w.fail("%s is not sent although it fits", key)
	}
}

// send sends a request for a caller, which may give up or be refused.
func (w *pauseWorld) send(ctx context.Context, key string) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.underWay[key]--
	}()
	q, _ := http.NewRequestWithContext(ctx, "GET", "http://192.0.2.1/", nil)
	q.Header.Set("Key", key)
	if res, err := w.client.Do(q); err == nil {
		res.Body.Close()
	} else if limited := new(quota.LimitedError); !errors.As(err, &limited) && !errors.Is(err, context.Canceled) {
		w.Errorf("%v", err)
	}
}

// TestLayers does for reservations, settled costs, leases and pauses what TestOracle does
// for algorithms: it compares the decisions of random schedules with a slow definition,
// books of what was spent and when. A layer with leases goes on until a lease was used, for at
// most five times its part of the decisions.
func TestLayers(t *testing.T) {
	decisions := rounds.N(10_000, 50_000)
	for _, layer := range []struct {
		name string
		run  func(*testing.T, *rand.Rand) int
	}{
		{"turns", turns}, {"settle", settlements}, {"lease", replicas}, {"settle over lease", leasedSettlements}, {"transport", pauses},
	} {
		t.Run(layer.name, func(t *testing.T) {
			hits = 0
			lease := strings.Contains(layer.name, "lease")
			for n := 0; n < decisions/5 || lease && hits == 0 && n < decisions; {
				seed := rand.Uint64()
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(time.Duration(seed%3600e6) * time.Microsecond)
					n += layer.run(t, rand.New(rand.NewPCG(seed, 15)))
				})
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if lease && hits == 0 {
				t.Error("no lease was used")
			}
		})
	}
}
