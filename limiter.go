package weir

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/remaining"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
)

// A Limiter applies rules to requests. It is immutable and safe for concurrent use.
type Limiter struct {
	store   Store
	unpaid  Store // the store for what granted units must not pay for: strikes, bans and shadow
	rules   []*rule
	riders  []rider
	limits  int // how many limits all rules have, without those of policies
	o       Options
	settles bool // a rule has Settle
	flies   bool // a limit can count requests in flight

	left   remaining.Table // what servers say that keys have left, of other units than requests
	writer *headers.Writer
	log    errorLog
	passed errorLog // of requests that pass undecided, which other errors must not silence

	waiting atomic.Int64
	pool    sync.Pool // of *verdict

	nested    atomic.Bool // checkNesting has warned
	doubled   atomic.Bool // the same
	strayUnit atomic.Bool // ReportUsage has warned
	lateUnit  atomic.Bool // the same
	instant   bool        // the store decides in memory: see isInstant
}

// A rider joins the way of a request. It adds charges to the one call of the store that
// decides the request, and handles what the store decides. A rider serves all requests of a
// Limiter or a Transport, so it keeps nothing about a request between two of these calls. The
// riders of a Limiter are called in the order in which New installs them.
type rider interface {
	// meet is called for each rule that may charge or refuse the request, before the rule does.
	// applies says that the request has that key, and that its policy is not Unlimited. meet may
	// deny the request, or add charges to riding. If it returns true, the rule refuses nothing,
	// its charges go aside, and no charges of riders ride along with them.
	meet(v *verdict, rule *rule, key string, applies bool) (aside bool)

	// heed is called with the decisions on all charges: those of v.items come first, and then
	// those of riders. It may refuse the request.
	heed(v *verdict)

	// start is called when an admitted request is about to be served or sent, and may delay it
	// until the context of v ends. If end is not nil, it is called once the request is over, even
	// if a handler has panicked.
	start(v *verdict) (end func())
}

// A bystander is a rider that does nothing. Riders embed it.
type bystander struct{}

func (bystander) meet(*verdict, *rule, string, bool) bool { return false }

func (bystander) heed(*verdict) {}

func (bystander) start(*verdict) func() { return nil }

// ends has what riders do once a request is over.
type ends []func()

// startAll has riders start an admitted request.
func startAll(riders []rider, v *verdict) (all ends) {
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

	longest int32 // the item that refuses for the longest time, if a limit refuses
}

// An inquiry is what a store is asked about a request: first the charges that the request
// owes, and then the charges of riders.
type inquiry struct {
	Admission
	event   Event          // for Observe; its Transaction and Refusal are those of the Admission
	riding  []quota.Charge // of riders
	least   time.Duration  // the limits of some rule refuse for at least this long, as far as a rider knows
	outer   *verdict       // of the Limiter around this one
	told    *verdict       // the context of the next handler; nil until tell or Room makes it
	shown   []headers.Item // of the header fields
	entered bool           // the request is one of the MaxWaiting that may wait
	slept   time.Duration  // how long the request has waited already, for units in flight
	gone    error          // of its context, if that has ended meanwhile
}

// extra holds what few requests need.
type extra struct {
	denial Refusal   // that is not by limits: a ban, a deny, or a missing key
	by     *rule     // the rule of the denial
	aside  book      // charges that refuse nothing
	l      *Limiter  // if a rule has Settle
	used   usedUnits // see ReportUsage

	onError func(r *http.Request, err error) error // the same, if Draw cannot draw
}

// A book has charges of a request that are spent in a call of their own, in place of its other
// charges.
type book struct {
	quota.Transaction
	items []item
	spent bool
}

// An item is the decision on one limit of a request.
type item struct {
	*policy
	quota.Decision
	key  string
	cost int64
}

func (v *verdict) extras() *extra {
	if v.extra == nil {
		v.extra = new(extra)
	}
	return v.extra
}

// settledBy has l settle the request of v.
func (e *extra) settledBy(l *Limiter, onError func(r *http.Request, err error) error) {
	e.l, e.onError = l, onError
}

// outside returns the verdict of the Limiter around that of v, or nil if there is none.
func (v *verdict) outside() *verdict {
	if v.inquiry != nil {
		return v.outer
	}
	return verdictOf(v.Context)
}

// aside returns the charges that refuse nothing, or nil if there are none.
func (v *verdict) aside() *book {
	if v.extra == nil || len(v.extra.aside.Charges) == 0 {
		return nil
	}
	return &v.extra.aside
}

type verdictKey struct{}

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

// asking is the context in which stores are asked. It has the values of the request, but
// does not end with the request: a client that hangs up is charged.
type asking struct{ context.Context }

func (asking) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

func (asking) Done() <-chan struct{} { return nil }

func (asking) Err() error { return nil }

// usedUnits is what a request has used, by unit.
type usedUnits struct {
	mu   sync.Mutex
	of   map[string]*unitUse
	over bool // the request was settled
}

// A unitUse is how many units of one kind a request has used.
type unitUse struct {
	used     int64 // reported or drawn
	reported bool
	drawn    int64         // beyond what Cost has reserved
	stream   *quota.Stream // of these
}

// An errorLog logs errors, at most one line a second, because every request has an error
// while a store is down. A line says what failed and has the name of the rule, and no key.
type errorLog struct {
	logger *slog.Logger // nil means slog.Default()
	gate   sparse.Gate
}

// warn logs what happened, such as "request not decided". An ErrUnusable is logged as an error.
func (l *errorLog) warn(ctx context.Context, what, rule string, err error, attrs ...any) {
	unlogged, ok := l.gate.Pass()
	if !ok {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, quota.ErrUnusable) {
		level = slog.LevelError
	}
	attrs = append([]any{"rule", rule, "err", err, "cause", quota.Cause(err)}, attrs...)
	if unlogged > 0 {
		attrs = append(attrs, "unlogged", unlogged)
	}
	loggerOr(l.logger).Log(ctx, level, "weir: "+what, attrs...)
}

// held logs what quota.Keep could not do.
func (l *errorLog) held(ctx context.Context, what, rule string, err error) {
	l.warn(ctx, what, rule, err)
}

// loggerOr returns l, or slog.Default() if l is nil.
func loggerOr(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return l
}

// A silence counts the first requests of a rule that it leaves unlimited, until it has
// limited one. From then on n is silentRequests, and is only read.
type silence struct{ n atomic.Int32 }

func (s *silence) holds() bool { return s.n.Load() < silentRequests }

// end is called for a request that is limited.
func (s *silence) end() {
	if s.holds() {
		s.n.Store(silentRequests)
	}
}

// again is called for a request that is not limited. It returns true once, if that was the
// last of silentRequests.
func (s *silence) again() bool { return s.holds() && s.n.Add(1) == silentRequests }

// silentRequests is how many requests a rule may leave unlimited from its beginning before
// the Logger gets a warning. A rule that has limited one request works.
const silentRequests = 200

// miswired logs that a rule is probably wired wrong. Each such line comes once for a rule of a
// Limiter.
func (rule *rule) miswired(what, effect, likely string) {
	loggerOr(rule.log.logger).Warn("weir: "+what, "rule", rule.Name, "effect", effect, "likely", likely)
}

// noPlace is the Within of a request that may not wait because MaxWaiting leaves no place.
// It is not 0, because with Within 0 a LeakyBucket admits a burst at once instead of one
// request after the other.
const noPlace = time.Microsecond

// failOpen is the default of OnError: it lets requests pass in an outage, and only then. An
// outage goes away by itself, and no client can cause it.
func failOpen(_ *http.Request, err error) error {
	if errors.Is(err, quota.ErrBusy) || errors.Is(err, quota.ErrUnusable) || errors.Is(err, quota.ErrLimit) {
		return err
	}
	return nil
}
