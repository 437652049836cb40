package overrides

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/safe"
)

// An InvalidError is returned by Set if its arguments are invalid.
type InvalidError struct{ Text string }

func (e *InvalidError) Error() string { return "overrides: " + e.Text }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// MaxLive is the maximum number of overrides in a Live table.
const MaxLive = 10_000

// ErrFull is returned by Set if the table already has MaxLive other overrides that have not
// expired.
var ErrFull = errors.New("overrides: there are too many overrides")

var errUnread = errors.New("overrides: the table was not read yet")

// A Keeper stores the overrides of a Live table, so that several processes can share them. A Keeper
// must be safe for concurrent use. A *redisstore.Store is a Keeper.
type Keeper interface {
	// LoadOverrides returns the text of each override by name, and the version of the newest
	// change. If the given version is still the newest, kept is nil. A name can contain any bytes.
	// Each text begins with a number and a space. The number is the expiry time of the override in
	// µs since 1970 on the Keeper's clock, or 0 if the override never expires. The last result is
	// the current time on that clock.
	LoadOverrides(ctx context.Context, version string) (kept map[string]string, newest string, now time.Time, err error)

	// SaveOverride stores the text of an override for the duration d, or permanently if d is 0. Any
	// override with the same name is replaced. An empty text removes the override. If the Keeper
	// already has `most` other overrides that have not expired, SaveOverride stores nothing and
	// returns full as true.
	SaveOverride(ctx context.Context, name, text string, d time.Duration, most int) (full bool, err error)
}

// LiveOptions are the options for NewLive. The zero value is ready to use.
type LiveOptions struct {
	// Keeper shares the overrides with other processes; nil keeps them in this process only.
	Keeper Keeper

	// Interval is the time between queries of the Keeper by Run; 0 means 500 ms.
	Interval time.Duration

	// Logger logs when the Keeper fails, when it recovers, and when a request arrives before the
	// table has been read; nil means slog.Default().
	Logger *slog.Logger
}

// Live is a table of overrides that can be changed while the program runs. It is safe for
// concurrent use.
//
// Requests are checked against a copy of the table in memory, which Run keeps up to date. A change
// that another process makes takes effect within LiveOptions.Interval, plus the time that one call
// to the Keeper takes. If the Keeper fails, the copy remains in effect, its overrides still expire
// on time, and Err returns the error.
//
// Until the table has been read for the first time, no overrides are in effect: requests from
// denied keys and networks are served, and every key has the limits of its rule. During this time,
// Ready reports false. A warning is logged when the Keeper first fails, and another warning when
// the first request arrives. If denied keys must never be served, wait until Ready reports true
// before accepting requests.
type Live struct {
	o      LiveOptions
	log    *slog.Logger
	ready  atomic.Bool // the table was read
	reads  atomic.Bool // Run or the program reads the table, or it has no Keeper
	warned atomic.Bool // a request arrived before the table was read
	began  time.Time

	reading sync.Mutex // held while the Keeper is read, which may take seconds; locked before mu

	mu      sync.Mutex // guards the fields below
	version string
	ahead   time.Duration // by how much the Keeper's clock has gained on this process's when all was read
	changes int           // how often apply has changed the table
	all     []Override    // sorted by name
	rules   map[string]*liveRule
	err     error
}

// A liveRule holds the overrides of one rule.
type liveRule struct {
	forKeys, forNetworks bool // Of or DenyFrom was called for the rule
	table                atomic.Pointer[Table]
}

// An Override is an Entry in a Live table.
type Override struct {
	Rule string // the name of a rule
	Entry
	End  time.Time // when the override expires, on the clock of this process; zero means never
	Note string    // why the override was set
}

// NewLive returns an empty table. Run loads the overrides from the Keeper. To load the overrides
// before the first request, call Refresh.
func NewLive(o LiveOptions) *Live {
	o.Interval = cmp.Or(o.Interval, 500*time.Millisecond)
	if safe.Nil(o.Keeper) {
		o.Keeper = nil
	}
	l := &Live{o: o, began: time.Now(), log: cmp.Or(o.Logger, slog.Default()), rules: map[string]*liveRule{}}
	l.ready.Store(o.Keeper == nil)
	l.reads.Store(o.Keeper == nil)
	return l
}

// Ready reports whether the table has been read at least once, by Run, Refresh, Set or Remove.
// Without a Keeper, Ready always returns true.
func (l *Live) Ready() bool { return l.ready.Load() }

// noneInForce describes the effect of overrides that were never read.
const noneInForce = "nobody is denied, and no override is in force"

// checkRead logs one warning if a request under a rule has arrived before the table was read, or if
// nothing but Set or Remove reads the table.
func (l *Live) checkRead(rule string) {
	ready, reads := l.ready.Load(), l.reads.Load()
	if ready && reads || !l.warned.CompareAndSwap(false, true) {
		return
	}
	fix := "send requests once /readyz answers 200, or Ready reports true"
	if !reads {
		fix = "call Run, and wait for Ready"
	}
	if ready {
		l.log.Warn("overrides: changes by other processes not read", "rule", rule, "effect", "what they deny is served", "fix", fix)
		return
	}
	l.log.Warn("overrides: request served before the overrides were read", "rule", rule, "effect", noneInForce, "fix", fix)
}

// Of returns a function for the ForKey field of the weir.Rule with the given name. If the table has
// an override for a key, the returned function returns the override's policy. Otherwise, it returns
// file(key), or the zero Policy if file is nil. The given function can be, for example, the ForKey
// method of a Table.
func (l *Live) Of(rule string, file func(key string) weir.Policy) func(key string) weir.Policy {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rule(rule)
	r.forKeys = true
	return func(key string) weir.Policy {
		l.checkRead(rule)
		p := r.table.Load().ForKey(key)
		if p.Is(weir.Policy{}) && file != nil {
			return file(key)
		}
		return p
	}
}

// rule returns the overrides of a rule, which are kept up to date from then on. The caller
// holds l.mu.
func (l *Live) rule(name string) *liveRule {
	if l.rules[name] == nil {
		l.rules[name] = &liveRule{}
		l.build(name)
	}
	return l.rules[name]
}

// OverridesKeys reports whether overrides take effect under the rule, that is, whether [Live.Of]
// has been called for it.
func (l *Live) OverridesKeys(rule string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rules[rule]
	return r != nil && r.forKeys
}

// Run refreshes the table until ctx is done, and then returns ctx.Err(). Run blocks, so call it in
// a separate goroutine.
func (l *Live) Run(ctx context.Context) error {
	l.reads.Store(true)
	tick := time.NewTicker(l.o.Interval)
	defer tick.Stop()
	for {
		l.Refresh(ctx) // Err returns its error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Refresh queries the Keeper for changes and applies them.
func (l *Live) Refresh(ctx context.Context) error {
	err := l.refresh(ctx)
	if err == nil {
		l.reads.Store(true)
	}
	return err
}

func (l *Live) refresh(ctx context.Context) error {
	if l.o.Keeper == nil {
		return nil
	}
	l.reading.Lock()
	defer l.reading.Unlock()
	l.mu.Lock()
	known, changes := l.version, l.changes
	l.mu.Unlock()
	kept, version, now, err := l.o.Keeper.LoadOverrides(ctx, known)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		switch {
		case l.err != nil || ctx.Err() != nil:
		case l.ready.Load():
			l.log.Warn("overrides: overrides not read from the store", "err", err, "overrides", len(l.all), "effect",
				"those that were read last stay in force")
		default:
			l.log.Warn("overrides: overrides not read from the store", "err", err, "effect", noneInForce)
		}
		l.err = err
		return err
	}
	if l.err != nil {
		l.log.Info("overrides: overrides read from the store again")
		l.err = nil
	}
	defer l.ready.Store(true)
	ahead := now.Sub(l.began) - time.Since(l.began)
	if version == l.version || changes != l.changes { // the next call reads what was changed in the meantime
		if (ahead - l.ahead).Abs() > maxDelay { // the Keeper's clock was set, so expiry times may be wrong
			l.version = changedHere
		}
		return nil
	}
	l.ahead = ahead
	if version == "" && len(l.all) > 0 {
		l.log.Warn("overrides: all overrides lost by the store", "overrides", len(l.all))
	}
	l.version = version
	l.take(kept, now)
	return nil
}

// take replaces the table with the overrides in kept. now is the current time on the Keeper's
// clock.
func (l *Live) take(kept map[string]string, now time.Time) {
	here := time.Now() // with a monotonic reading, so that a step of this clock changes no expiry time
	l.all = l.all[:0:0]
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		micros, text, _ := strings.Cut(kept[name], " ")
		o, err := decode(name, text)
		end, errEnd := strconv.ParseInt(micros, 10, 64)
		if err := cmp.Or(err, errEnd); err != nil {
			rule, _, _ := strings.Cut(name, "\x00")
			l.log.Warn("overrides: override ignored", "err", fmt.Errorf("overrides: rule %.40q: %w", rule, err))
			continue
		}
		if end != 0 {
			o.End = here.Add(time.UnixMicro(end).Sub(now))
		}
		l.all = append(l.all, o)
	}
	for rule := range l.rules {
		l.build(rule)
	}
}

// build makes the table of a rule from l.all, if requests look it up.
func (l *Live) build(rule string) {
	r := l.rules[rule]
	if r == nil {
		return
	}
	t := emptyTable()
	for i := range l.all {
		if o := &l.all[i]; o.Rule == rule {
			t.add(&o.Entry, &node{policy: o.policy(), until: o.End}) // always adds, because overrides with different names have different keys
		}
	}
	r.table.Store(t)
}

// find returns the index of an override in l.all, or the index at which it would be inserted.
func (l *Live) find(name string) (i int, found bool) {
	return slices.BinarySearchFunc(l.all, name,
		func(o Override, name string) int { return strings.Compare(o.name(), name) })
}

// apply applies a change that the Keeper has accepted. Either o replaces the override of the same
// name, or that override is removed. Reading 9,000 overrides again would take 86 ms. The next
// Refresh does read all overrides, because another process may have changed the same override at
// the same time.
func (l *Live) apply(ctx context.Context, o *Override, remove bool) error {
	if !l.ready.Load() {
		return l.refresh(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i, found := l.find(o.name())
	switch {
	case remove && found:
		l.all = slices.Delete(l.all, i, i+1)
	case remove:
	case found:
		l.all[i] = *o
	default:
		l.all = slices.Insert(l.all, i, *o)
	}
	l.version = changedHere
	l.changes++
	l.build(o.Rule)
	return nil
}

// maxDelay is the longest delay between a reading of the Keeper's clock and its arrival.
const maxDelay = 10 * time.Second

// changedHere is a version that no Keeper returns.
const changedHere = "changed here"

// Set stores an override for the duration d, or permanently if d is 0. The override takes effect
// immediately in this process; in other processes, Run applies it. Set replaces any override for
// the same rule and the same Key, Prefix, All or Network. The Algorithm of a limit may be nil, or any algorithm in package
// algorithms except Calendar. Set returns an *InvalidError if the arguments are invalid, and
// ErrFull if the number of other overrides has already reached MaxLive.
func (l *Live) Set(ctx context.Context, rule string, e Entry, d time.Duration, note string) error {
	if d < 0 {
		return invalid("the duration is %v; want at least 0", d)
	}
	if err := e.check(false); err != nil {
		return invalid("%v", err)
	}
	if rule == "" || strings.Contains(rule, "\x00") {
		return invalid("no rule has the name %q", rule)
	}
	name, text := nameOf(rule, e.id()), encode(&e, note)
	o, err := decode(name, text) // as every process will read it
	if err != nil {
		return invalid("%v: %v", &e, err)
	}
	if d > 0 {
		o.End = time.Now().Add(d)
	}
	if err := l.save(ctx, name, text, d); err != nil {
		return err
	}
	return l.apply(ctx, &o, false)
}

// save passes the text of an override to the Keeper, and returns ErrFull if there are too many
// other overrides.
func (l *Live) save(ctx context.Context, name, text string, d time.Duration) error {
	if l.o.Keeper != nil {
		full, err := l.o.Keeper.SaveOverride(ctx, name, text, d, MaxLive)
		if full {
			return ErrFull
		}
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(o Override) bool { return !unexpired(o.End) })
	if _, found := l.find(name); text != "" && !found && len(l.all) >= MaxLive {
		return ErrFull
	}
	return nil
}

// Remove removes the override of a rule with the same Key, Prefix, All or Network as e; no other field
// of e matters. If this process knows no such override, found is false.
func (l *Live) Remove(ctx context.Context, rule string, e Entry) (found bool, err error) {
	_, found = l.Get(rule, e)
	if err := l.save(ctx, nameOf(rule, e.id()), "", 0); err != nil {
		return false, err
	}
	return found, l.apply(ctx, &Override{Rule: rule, Entry: e}, true)
}

// Get returns the override of a rule that was set with the same Key, Prefix, All or Network as e;
// no other field of e matters. For a Key, Get does not return an override of a Prefix.
func (l *Live) Get(rule string, e Entry) (o Override, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i, found := l.find(nameOf(rule, e.id())); found && unexpired(l.all[i].End) {
		return l.all[i], true
	}
	return o, false
}

// All returns the overrides that have not expired, sorted by rule and key.
func (l *Live) All() []Override {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.all), func(o Override) bool { return !unexpired(o.End) })
}

// Err returns the error from the last Refresh. If the table has not been read yet, the error is not
// nil. While Err returns an error, the table may be out of date.
func (l *Live) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !l.ready.Load() {
		return errUnread
	}
	return l.err
}

// nameOf returns the name of an override for a Keeper. Rule names contain no NUL, so two overrides
// never have the same name.
func nameOf(rule, id string) string { return rule + "\x00" + id }

func (o *Override) name() string { return nameOf(o.Rule, o.id()) }

// entryNamed returns an entry with the id that nameOf appends.
func entryNamed(id string) (e Entry, err error) {
	if id == "" {
		return e, errors.New("there is no key")
	}
	switch kind, text := id[0], id[1:]; kind {
	case '=':
		e.Key = text
	case '*':
		e.Prefix, e.All = text, text == ""
	case '/':
		e.Network, err = netip.ParsePrefix(text)
	default:
		err = fmt.Errorf("unknown kind %q", kind)
	}
	return e, err
}

// A record is the text of an override as JSON.
type record struct {
	Limits    []recordLimit `json:"limits,omitempty"`
	Unlimited bool          `json:"unlimited,omitempty"`
	Denied    bool          `json:"denied,omitempty"`
	Note      string        `json:"note,omitempty"`
}

type recordLimit struct {
	Name      string        `json:"name,omitempty"`
	Algorithm string        `json:"algorithm,omitempty"`
	Quota     int64         `json:"quota"`
	Period    time.Duration `json:"period,omitempty"` // ns
	Burst     int64         `json:"burst,omitempty"`
}

const maxText = 4096 // bytes

func encode(e *Entry, note string) string {
	rec := record{Unlimited: e.Unlimited, Denied: e.Denied, Note: note}
	for _, l := range e.Limits {
		r := recordLimit{Name: l.Name, Quota: l.Quota, Period: l.Period, Burst: l.Burst}
		if l.Algorithm != nil {
			r.Algorithm = l.Algorithm.Name()
		}
		rec.Limits = append(rec.Limits, r)
	}
	text, _ := json.Marshal(rec) // has only values that JSON can express
	return string(text)
}

func decode(name, text string) (o Override, err error) {
	if len(text) > maxText {
		return o, fmt.Errorf("the override has %d bytes; want at most %d", len(text), maxText)
	}
	var rec record
	if err := json.Unmarshal([]byte(text), &rec); err != nil {
		return o, err
	}
	rule, id, _ := strings.Cut(name, "\x00")
	o = Override{Rule: rule, Note: rec.Note}
	if o.Entry, err = entryNamed(id); err != nil {
		return o, err
	}
	o.Unlimited, o.Denied = rec.Unlimited, rec.Denied
	for _, r := range rec.Limits {
		l := weir.Limit{Name: r.Name, Quota: r.Quota, Period: r.Period, Burst: r.Burst}
		if r.Algorithm != "" {
			if l.Algorithm = algorithms.ByName(r.Algorithm); l.Algorithm == nil {
				return o, fmt.Errorf("the algorithm %.40s cannot be set while the program runs", r.Algorithm)
			}
		}
		o.Limits = append(o.Limits, l)
	}
	return o, o.check(false)
}

// DenyFrom returns a function that reports whether the client address of a request is in a network
// that the rule's overrides deny. Use it in weir.Rule.Policy:
//
//	Policy: weir.When(live.DenyFrom("api", weir.ClientAddr()), weir.Denied()),
//
// To deny a network, call Set with an Entry whose Network and Denied are set. The given function
// must return the client address of a request; use weir.ClientAddr with the proxies that the rule
// trusts.
func (l *Live) DenyFrom(rule string, find func(r *http.Request) (netip.Addr, bool)) func(r *http.Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.rule(rule)
	of.forNetworks = true
	return func(r *http.Request) bool {
		l.checkRead(rule)
		a, ok := find(r)
		return ok && of.table.Load().holds(addr.Outside(a))
	}
}

// DeniesNetworks reports whether DenyFrom was called for the rule.
func (l *Live) DeniesNetworks(rule string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rules[rule]
	return r != nil && r.forNetworks
}
