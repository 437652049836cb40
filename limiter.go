package weir

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/quota"
)

// A rider joins the way of a request. It adds charges to the one call of the store that
// decides the request, and heeds what the store decides. A rider serves all requests of a
// Limiter or a Transport, so it keeps nothing about a request between two of these calls. The
// riders of a Limiter are called in the order in which New installs them.
type rider interface {
	// meet is called for each rule that may charge or refuse the request, before the rule does.
	// applies says that the request has that key, and that its policy is not Unlimited. meet may
	// deny the request. If it returns true, the rule refuses nothing, its charges go aside, and
	// the next riders do not meet it.
	meet(v *verdict, rule *rule, key string, applies bool) (aside bool)

	// board adds charges to v, behind those that the request owes.
	board(v *verdict)

	// heed is called with the decisions on all charges. It may refuse the request.
	heed(v *verdict)

	// start is called when an admitted request is about to be served or sent. If end is not
	// nil, it is called once the request is over, even if a handler has panicked.
	start(v *verdict) (end func())
}

// A bystander is a rider that does nothing. Riders embed it.
type bystander struct{}

func (bystander) meet(*verdict, *rule, string, bool) bool { return false }
func (bystander) board(*verdict)                          {}
func (bystander) heed(*verdict)                           {}
func (bystander) start(*verdict) func()                   { return nil }

// serve is the way of a request: it is decided, it waits for its turn, and it is answered.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v := l.newVerdict(r)
	switch err := l.admit(v); {
	case err != nil:
		unserved(w, r, err)
	case v.event.Passed:
		next.ServeHTTP(w, r)
	default:
		l.answer(w, r, next, v)
	}
}

// admit decides the request of v and returns when its turn has come, or the error of its context
// if that ends first.
func (l *Limiter) admit(v *verdict) error {
	l.decide(v, l.riders, l.o.MaxWait)
	switch {
	case v.event.Err != nil:
		l.fail(v)
	case v.reason == 0 && v.Wait > 0:
		return l.wait(v)
	}
	return nil
}

// answer writes the header fields, writes the refusal or calls next, and recycles the
// verdict.
func (l *Limiter) answer(w http.ResponseWriter, r *http.Request, next http.Handler, v *verdict) {
	h, settles := w.Header(), l.settles && v.reason == 0
	tells := !settles && l.tells(v)
	fresh := len(h) == 0 // the response will have no other fields
	l.writeHeaders(h, v, tells)
	if v.reason != 0 && v.outer != nil {
		l.checkNesting(v)
	}
	if v.reason == 0 && len(l.riders) > 0 {
		next = start(l.riders, v).handler(next)
	}
	switch {
	case settles:
		l.serveAndSettle(w, r, v, next)
	case tells:
		told := v.tell()
		l.recycle(v)
		if told.reason != 0 {
			next = l.o.OnLimited
		}
		next.ServeHTTP(w, r.WithContext(told))
	case v.reason != 0:
		p := v.problem()
		l.recycle(v)
		p.write(w, r, fresh)
	default:
		l.recycle(v)
		next.ServeHTTP(w, r)
	}
}

// ends has what riders do once a request is over.
type ends []func()

// start has riders start an admitted request.
func start(riders []rider, v *verdict) (all ends) {
	for _, rider := range riders {
		if end := rider.start(v); end != nil {
			all = append(all, end)
		}
	}
	return all
}

func (e ends) run() {
	for _, end := range e {
		end()
	}
}

// handler returns next, or a handler that runs e when next returns or panics.
func (e ends) handler(next http.Handler) http.Handler {
	if len(e) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer e.run()
		next.ServeHTTP(w, r)
	})
}

// tells reports whether the handler that gets the request, next or OnLimited, gets the
// decision in its context.
func (l *Limiter) tells(v *verdict) bool {
	if v.reason != 0 {
		return l.o.OnLimited != nil
	}
	return len(v.items) > 0 && (!l.o.NoFromContext || v.outer != nil)
}

// tell returns the context of the handler that gets the request: a copy of the verdict
// without the inquiry, because another request will use the inquiry.
func (v *verdict) tell() *verdict {
	told := v.told
	if told == nil {
		told, _ = makeVerdict(len(v.items), false)
	}
	told.Context, told.extra, told.reason = v.Context, v.extra, v.reason
	told.items = append(told.items, v.items...)
	told.at, told.waited = v.At.UnixMicro(), v.Wait
	return told
}

// fail has OnError say whether a request passes that could not be decided.
func (l *Limiter) fail(v *verdict) {
	defer l.observe(v) // even if OnError panics
	v.items = nil      // their decisions mean nothing
	if l.o.OnError(v.event.Request, v.event.Err) == nil {
		v.event.Passed = true
		return
	}
	if errors.Is(v.event.Err, quota.ErrBusy) {
		v.Refusal.RetryAfter = time.Second // a store that gets too much now may have room a moment later
	}
	v.deny(v.Refusal, nil, v.event.Key)
}

// decide charges the rules that apply to the request of v, and records the outcome in v. It
// does not sleep: the caller waits for v.Wait, up to maxWait. The caller observes an error,
// because it knows whether the request passes.
func (l *Limiter) decide(v *verdict, riders []rider, maxWait time.Duration) {
	l.charge(v, riders)
	switch {
	case v.event.Err != nil:
	case v.reason != 0:
		l.observe(v)
	case maxWait > 0:
		l.askInLine(v, riders, maxWait)
	default:
		l.ask(v, riders)
	}
}

// askInLine does what ask does, for a request that may wait for up to maxWait.
func (l *Limiter) askInLine(v *verdict, riders []rider, maxWait time.Duration) {
	v.Within = l.enter(v, maxWait)
	waits := false
	defer func() { // even if the store panics
		if !waits {
			l.leave(v)
		}
	}()
	l.ask(v, riders)
	waits = v.event.Err == nil && v.reason == 0 && v.Wait > 0
}

// ask has the store decide the charges of v and of its riders, in one call.
func (l *Limiter) ask(v *verdict, riders []rider) {
	if len(v.Charges) == 0 {
		if v.aside() == nil {
			l.observe(v)
		}
		return
	}
	for _, rider := range riders {
		rider.board(v)
	}
	var err error
	if v.event.Took, err = l.timedTake(v, l.store, &v.Transaction); err != nil {
		v.event.Err = err
		v.Refusal, v.event.Key = Refusal{Reason: ReasonError, Rule: v.Charges[0].Rule}, v.Charges[0].Key
	} else if f, longest := refusalOf(&v.Transaction, len(v.items)); f.Reason != 0 {
		v.Refusal, v.reason, v.event.Key = f, f.Reason, v.Charges[longest].Key
	}
	if len(riders) > 0 {
		l.heed(v, riders)
	}
	if v.event.Err == nil {
		l.observe(v)
	}
}

// heed has riders heed the decisions of v, and then removes their charges.
func (l *Limiter) heed(v *verdict, riders []rider) {
	if v.event.Err == nil {
		for _, rider := range riders {
			rider.heed(v)
		}
	}
	v.trim()
	if v.reason != 0 && v.Wait > 0 { // a rider has refused a request that has reserved a turn
		l.giveBack(v)
	}
}

// timedTake asks the store. If Observe is set, timedTake measures how long the store takes,
// unless reading the clock would take as long.
func (l *Limiter) timedTake(v *verdict, store Store, t *quota.Transaction) (took time.Duration, err error) {
	switch {
	case l.instant:
		return 0, store.Take(context.Background(), t)
	case l.o.Observe == nil:
		return 0, store.Take(asking{v.Context}, t)
	}
	start := time.Now()
	err = store.Take(asking{v.Context}, t)
	return time.Since(start), err
}

// enter returns how long a request may wait: at most maxWait, and no longer than its
// context lasts. It returns noPlace if no time is left, or if MaxWaiting requests wait or
// are being decided. If the request may wait, enter counts it until leave is called. enter
// counts the request before the store is asked, because otherwise more than MaxWaiting
// requests could pass at once.
func (l *Limiter) enter(v *verdict, maxWait time.Duration) time.Duration {
	if maxWait <= 0 {
		return 0
	}
	within := maxWait
	if deadline, ok := v.Deadline(); ok {
		within = max(0, min(within, time.Until(deadline)))
	}
	if within > 0 && l.waiting.Add(1) > int64(l.o.MaxWaiting) {
		l.waiting.Add(-1)
		within = 0
	}
	if within == 0 {
		return noPlace
	}
	v.entered = true
	return within
}

// noPlace is the Within of a request that may not wait because MaxWaiting leaves no place.
// It is not 0, because with Within 0 a LeakyBucket admits a burst at once instead of one
// request after the other.
const noPlace = time.Microsecond

func (l *Limiter) leave(v *verdict) {
	if v.entered {
		v.entered = false
		l.waiting.Add(-1)
	}
}

// wait returns when the turn of v has come. If the context of the request ends before the
// turn, wait gives the turn back.
func (l *Limiter) wait(v *verdict) error {
	defer l.leave(v)
	timer := time.NewTimer(v.Wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-v.Done():
		l.giveBack(v)
		return v.Err()
	}
}

// giveBack gives back the turn of v, because the request does not use it.
func (l *Limiter) giveBack(v *verdict) {
	if err := quota.Refund(asking{v.Context}, l.store, &v.Transaction); err != nil {
		l.log.warn(v, "give units back", v.Charges[0].Rule, err) // if it fails, the units stay spent
	}
	v.Wait = 0
}

// A verdict is what a Limiter decides about a request. Most verdicts are recycled with
// their inquiries. The context of the next handler is a copy of the verdict without the
// inquiry. A copy for one limit has 160 bytes, and 128 more if it has Room for values of header
// fields. FromContext makes a Transaction of the items of the copy.
type verdict struct {
	context.Context
	*inquiry
	items  []item // the first charges of the inquiry, in order
	extra  *extra
	at     int64 // µs since 1970, of the transaction
	waited time.Duration
	reason Reason // why the request is refused; 0 if it is not
}

// An inquiry is what a store is asked about a request: first the charges that the request
// owes, and then the charges of riders.
type inquiry struct {
	Admission
	event   Event          // for Observe; its Transaction and Refusal are those of the Admission
	buffer  time.Duration  // is added to every period
	least   time.Duration  // the limits of some rule refuse for at least this long, as far as a rider knows
	outer   *verdict       // of the Limiter around this one
	told    *verdict       // the context of the next handler; nil until tell or Room makes it
	shown   []headers.Item // of the header fields
	entered bool           // the request is one of the MaxWaiting that may wait
}

// extra holds what few requests need.
type extra struct {
	denial Refusal  // that is not by limits: a ban, a deny, or a missing key
	by     *rule    // the rule of the denial
	aside  book     // charges that refuse nothing
	l      *Limiter // if a rule has Settle
	used   usage    // see ReportUsage
}

// A book has charges of a request that are spent in a call of their own, in place of its other
// charges.
type book struct {
	quota.Transaction
	items []item
	spent bool
}

// newVerdict returns an empty verdict of r, recycled or new, with room for the limits of all
// rules. A recycled verdict keeps its memory, its plans, and beyond their length the charges and
// items of an earlier request.
func (l *Limiter) newVerdict(r *http.Request) *verdict {
	v, _ := l.pool.Get().(*verdict)
	if v == nil {
		v, _ = makeVerdict(l.limits, false)
		v.inquiry = new(inquiry)
	}
	v.begin(r)
	return v
}

// begin empties v for the request r.
func (v *verdict) begin(r *http.Request) {
	v.Context = r.Context()
	v.outer = verdictOf(v.Context)
	v.event.Request = r
	v.items = v.items[:0]
	t := &v.Transaction
	t.Charges = t.Charges[:0]
	t.Decisions = t.Decisions[:0]
	t.Undo = t.Undo[:0]
	t.Within, t.Wait, t.At = 0, 0, time.Time{}
}

// makeVerdict returns a verdict that has no inquiry, with room for the given number of
// limits. If withRoom, the same memory has Room for values of header fields.
func makeVerdict(limits int, withRoom bool) (*verdict, *headers.Room) {
	switch {
	case limits <= 1 && !withRoom:
		m := new(struct {
			verdict
			items [1]item
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, nil
	case limits <= 1:
		m := new(struct {
			verdict
			items [1]item
			headers.Room
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, &m.Room
	case limits <= 4:
		m := new(struct {
			verdict
			items [4]item
			headers.Room
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, &m.Room
	}
	m := new(struct {
		verdict
		headers.Room
	})
	m.items = make([]item, 0, limits)
	return &m.verdict, &m.Room
}

// recycle puts v, with its inquiry, into the pool for another request. The pool must keep
// neither keys nor logs of states alive. charge and trim clear what they cut, so no key is left
// beyond the lengths. After an error v is not recycled, because a store that failed may still use
// it.
func (l *Limiter) recycle(v *verdict) {
	if v.event.Err != nil {
		return
	}
	v.Release()
	for i := range v.items {
		v.items[i].key = ""
		if !l.instant { // such a store may have changed the charges
			v.items[i].policy = nil
		}
	}
	if v.reason != 0 {
		v.reason, v.Refusal = 0, Refusal{}
	}
	v.Context, v.outer, v.told, v.extra, v.event.Request, v.event.Key = nil, nil, nil, nil, nil, ""
	v.event.Took, v.event.BanBegan, v.buffer, v.least, v.entered = 0, false, 0, 0, false
	l.pool.Put(v)
}

type verdictKey struct{}

// asking is the context in which stores are asked. It has the values of the request, but
// does not end with the request: a client that hangs up is charged.
type asking struct{ context.Context }

func (asking) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
func (asking) Done() <-chan struct{}                   { return nil }
func (asking) Err() error                              { return nil }

// isInstant reports whether s decides in memory: see quota.Instant.
func isInstant(s Store) bool {
	i, ok := s.(quota.Instant)
	return ok && compare.Equal(i.Instant(), s)
}

func (v *verdict) Value(key any) any {
	if key == (verdictKey{}) {
		return v
	}
	return v.Context.Value(key)
}

// verdictOf returns the verdict of the innermost Limiter, or nil if there is none.
func verdictOf(ctx context.Context) *verdict {
	v, _ := ctx.Value(verdictKey{}).(*verdict)
	return v
}

func (v *verdict) extras() *extra {
	if v.extra == nil {
		v.extra = new(extra)
	}
	return v.extra
}

// aside returns the charges that refuse nothing, or nil if there are none.
func (v *verdict) aside() *book {
	if v.extra == nil || len(v.extra.aside.Charges) == 0 {
		return nil
	}
	return &v.extra.aside
}

// eachSpent calls f with each transaction that the request has spent, and with its items.
func (v *verdict) eachSpent(f func(t *quota.Transaction, items []item)) {
	f(&v.Transaction, v.items)
	if b := v.aside(); b != nil && b.spent {
		f(&b.Transaction, b.items)
	}
}

// trim removes the charges of riders, because Observe and FromContext show the transaction.
func (v *verdict) trim() {
	n := len(v.items)
	if len(v.Charges) > n {
		clear(v.Charges[n:]) // they would keep keys alive
		v.Charges, v.Decisions = v.Charges[:n], v.Decisions[:min(n, len(v.Decisions))]
	}
}

// observe calls Observe with the event of v, and logs its error.
func (l *Limiter) observe(v *verdict) {
	if v.event.Err != nil || l.o.Observe != nil { // this check is inlined, so most limiters cost no call
		l.complete(v)
	}
}

// complete completes the event of v and reports it.
func (l *Limiter) complete(v *verdict) {
	v.event.Transaction, v.event.Refusal = &v.Transaction, v.Refusal
	l.report(v, &v.event)
}

// report logs the error of an event, and calls Observe.
func (l *Limiter) report(ctx context.Context, e *Event) {
	if e.Err != nil {
		log, what := &l.log, []any{"passed", e.Passed}
		switch {
		case e.Passed:
			log = &l.passed
		case e.Shadow: // its rules refuse nothing
			what = []any{"shadow", true}
		}
		log.warn(ctx, "decide", e.Refusal.Rule, e.Err, what...)
	}
	if l.o.Observe != nil {
		l.o.Observe(*e)
	}
}

// refusalOf returns why the first n charges of a decided transaction are refused, and the index
// of the charge with the longest wait.
func refusalOf(t *quota.Transaction, n int) (f Refusal, charge int) {
	for i := range t.Decisions[:n] {
		d := &t.Decisions[i]
		if !d.Allowed && (f.Reason == 0 || d.RetryAfter > f.RetryAfter) {
			f, charge = Refusal{ReasonLimit, t.Charges[i].Rule, d.RetryAfter}, i
		}
	}
	return f, charge
}
