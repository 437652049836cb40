// Package redisstore keeps the states of rate limits in Redis, where processes
// share them. A transaction is one call of one script, decided on the clock of
// Redis, whatever the number of its limits.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
)

// Options are ready to use as they are.
type Options struct {
	// Prefix begins every key; "" means "weir:". It tells apart what shares a
	// Redis, and must not contain a brace, which would put it into the hash
	// tag.
	Prefix string

	// Timeout bounds one Take, whatever the client's own settings; 0 means
	// 50 ms.
	Timeout time.Duration
}

const (
	defaultPrefix  = "weir:"
	defaultTimeout = 50 * time.Millisecond
)

// ErrTimeout is returned by Take when Redis has not answered in time. Whether
// the transaction was decided, and spent something, is not known. If there was no
// connection in time the error says why: errors.Is finds this one and that of the
// network in it.
var ErrTimeout = errors.New("redisstore: no answer in time")

// Store is a weir.Store. It is safe for concurrent use.
//
// The states of a rule and key are in one value, and its logs in another:
//
//	weir:api:{.192.0.2.1}
//	weir:api:log:{.192.0.2.1}
//
// The client's key is the hash tag, so that in a cluster all that one key is
// charged with is in one slot, and keys are spread over all nodes. Keys in
// different slots are charged all or none too, but not at one instant and
// without waiting, whatever Within is; a Delay is errors.ErrUnsupported. Where two clients race for the last unit
// of one of them, others may be refused meanwhile, and a unit may be lost; never
// is more admitted.
type Store struct {
	rdb     redis.UniversalClient
	prefix  string
	timeout time.Duration
	spread  bool // keys may be on different nodes

	queue   *queue      // nil if spread
	queues  sync.Map    // *redis.Client → *queue, if spread
	located atomic.Bool // the nodes are known

	scripts sync.Map     // names of algorithms → script
	direct  sync.Map     // limits → *direct
	directs atomic.Int64 // how many
	dials   dials
	known   sync.Map // names of scripts that a batch has sent
}

// New returns a store that uses rdb and leaves it to the caller to close. It
// does not need Redis to be there. It returns an error for a prefix or a
// timeout that can't be used.
//
// ClientOptions has settings of a client that serve a limiter. Others work too,
// but see Warnings. A hook of the client notes why connections fail, for errors to
// say.
func New(rdb redis.UniversalClient, o Options) (*Store, error) {
	switch {
	case rdb == nil:
		return nil, errors.New("redisstore: the client is nil")
	case strings.ContainsAny(o.Prefix, "{}"):
		return nil, fmt.Errorf("redisstore: prefix %q contains a brace", o.Prefix)
	case o.Timeout < 0:
		return nil, fmt.Errorf("redisstore: timeout %v is below 0", o.Timeout)
	}
	s := &Store{rdb: rdb, prefix: o.Prefix, timeout: o.Timeout}
	if s.prefix == "" {
		s.prefix = defaultPrefix
	}
	if s.timeout == 0 {
		s.timeout = defaultTimeout
	}
	switch rdb.(type) {
	case *redis.ClusterClient, *redis.Ring:
		s.spread = true
	default:
		s.queue = newQueue(rdb, s.timeout)
		s.queue.warm()
	}
	s.dials.watch(rdb)
	return s, nil
}

// Take implements weir.Store. Its errors are ErrTimeout, those of ctx, those of
// Redis and of the network, and what Transaction.Validate finds. Where ctx is
// canceled meanwhile it returns by the end of its time at the latest.
func (s *Store) Take(ctx context.Context, t *weir.Transaction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return err
	}
	if len(t.Charges) == 0 {
		t.Decide(time.Now().UnixMicro(), nil)
		return nil
	}
	budget, cancel := context.WithTimeoutCause(ctx, s.timeout, ErrTimeout)
	defer cancel()
	var err error
	if s.spread {
		err = s.takeSpread(budget, t)
	} else {
		err = s.take(budget, t)
	}
	if err == nil {
		return nil
	}
	return s.late(ctx, budget, err)
}

// late says of an error whose time was up, if it came of that: the caller's, the
// budget's, or that of a client that waits for less. If connections fail it says why.
func (s *Store) late(ctx, budget context.Context, err error) error {
	if budget.Err() != nil {
		if cause := context.Cause(budget); cause != ErrTimeout {
			return cause
		}
		return s.dials.timeout(nil)
	}
	timeout := net.Error(nil)
	if !errors.Is(err, redis.ErrPoolTimeout) && !(errors.As(err, &timeout) && timeout.Timeout()) {
		return say(err)
	}
	end, _ := budget.Deadline()
	if caller, ok := ctx.Deadline(); ok && !caller.After(end) && time.Until(end) <= 0 {
		return context.DeadlineExceeded // the connection noticed before the context
	}
	return s.dials.timeout(err)
}

// take decides a transaction whose keys are all on one node.
func (s *Store) take(ctx context.Context, t *weir.Transaction) error {
	return s.decide(ctx, t, withinOf(t))
}

// withinOf returns the longest wait of t in µs, or forget.
func withinOf(t *weir.Transaction) int64 {
	if t.Forget {
		return forget
	}
	return max(0, int64(min(t.Within, weir.MaxTicks*time.Microsecond)/time.Microsecond))
}

// Instead of a longest wait, peek has a transaction decided and nothing spent, and
// forget has its states forgotten.
const (
	peek   = -1
	forget = -2
)

// decide has the script decide t, where within is the longest wait in µs.
func (s *Store) decide(ctx context.Context, t *weir.Transaction, within int64) error {
	if d := s.directFor(t, within); d != nil {
		c := call{script: d.script, keys: []string{s.key(&t.Charges[0])}, logs: d.logs}
		reply, err := s.run(ctx, &c)
		if err != nil {
			return err
		}
		if _, no := reply.(int64); !no {
			d.hits.Add(1)
			return c.explain(t, reply)
		}
		if reply == int64(0) {
			d.misses.Add(1)
		}
	}
	around := []int64{time.Now().UnixMicro()}
	for range 2 + 2*len(t.Charges) {
		c, err := s.compile(t, within, around)
		if err != nil {
			return err
		}
		reply, err := s.run(ctx, &c)
		if err == nil {
			return c.explain(t, reply)
		}
		at, ok := beyondEdges(err)
		if !ok {
			return err
		}
		// Nothing was decided: clocks are far apart, or a reservation lies
		// beyond the windows that the script was told of.
		around = append(around, at)
	}
	return fault(&t.Charges[0], "the windows of a calendar lie out of reach")
}

// mostCharges is how many charges a transaction may have. Redis takes a million
// arguments and hangs up if there are more; long before that Timeout is over.
const mostCharges = 10_000

// A call is a transaction as its script gets it.
type call struct {
	script script
	keys   []string
	args   []any
	within int64
	logs   bool // the reply is that of a logScript
}

// compile names keys and arguments. around are instants whose windows the
// script may need.
func (s *Store) compile(t *weir.Transaction, within int64, around []int64) (c call, err error) {
	if len(t.Charges) > mostCharges {
		return c, fmt.Errorf("redisstore: %d charges in one transaction: at most %d are allowed", len(t.Charges), mostCharges)
	}
	algorithms := make([]weir.Algorithm, 0, 4)
	c.within = within
	delay := max(0, min(int64(t.Delay/time.Microsecond), within))
	c.args = append(make([]any, 0, 2+10*len(t.Charges)), within, delay)
	for i := range t.Charges {
		charge := &t.Charges[i]
		l := &charge.Limit
		var edges string
		if e, ok := l.Algorithm.(Edged); ok {
			edges = join(e, around)
		}
		c.args = append(c.args,
			index(&algorithms, l.Algorithm, func(a, b weir.Algorithm) bool { return a.Name() == b.Name() }),
			index(&c.keys, s.key(charge), func(a, b string) bool { return a == b }),
			id(l), charge.Cost, l.Quota, int64(l.Period/time.Microsecond), l.Burst, edges, max(0, charge.Spent), undoOf(t, i))
	}
	c.script, err = s.script(algorithms)
	return c, err
}

// undoOf writes what undoes the i-th charge; "" for nothing.
func undoOf(t *weir.Transaction, i int) string {
	if len(t.Undo) != len(t.Charges) || t.Charges[i].Cost >= 0 || t.Undo[i].After.At == 0 {
		return ""
	}
	u := &t.Undo[i]
	if u.Log {
		return strconv.FormatInt(u.Before.At, 10)
	}
	a, b := &u.After, &u.Before
	return fmt.Sprint(a.At, a.A, a.B, b.At, b.A, b.B, u.Until)
}

// index returns the place of x in list, from 1, and appends it if it is not
// there.
func index[T any](list *[]T, x T, same func(a, b T) bool) int {
	for i, y := range *list {
		if same(x, y) {
			return i + 1
		}
	}
	*list = append(*list, x)
	return len(*list)
}

// join writes the edges around each instant, and a 0 between them.
func join(e Edged, around []int64) string {
	var b []byte
	for i, at := range around {
		if i > 0 {
			b = append(b, "0 "...)
		}
		for _, n := range e.Edges(at) {
			b = append(strconv.AppendInt(b, n, 10), ' ')
		}
	}
	return string(b)
}

func (s *Store) script(algorithms []weir.Algorithm) (script, error) {
	var names strings.Builder
	for _, a := range algorithms {
		names.WriteString(a.Name())
		names.WriteByte(' ')
	}
	if x, ok := s.scripts.Load(names.String()); ok {
		return x.(script), nil
	}
	x, err := newScript(algorithms)
	if err == nil {
		s.scripts.Store(names.String(), x)
	}
	return x, err
}

// key returns where the state of a charge is kept. What clients choose stands
// last; the dot before it makes a hash tag of any key, even of an empty one.
func (s *Store) key(c *weir.Charge) string {
	kind := ":{."
	if isLog(c.Limit.Algorithm) {
		kind = ":log:{."
	}
	return s.prefix + escape(c.Rule) + kind + weir.StoredKey(c.Key) + "}"
}

// id returns the names of limit and algorithm, as a value holds them.
func id(l *weir.Limit) string {
	return escape(l.StoredName()) + "/" + escape(l.Algorithm.Name())
}

// escape keeps a name from being confused with what stands next to it.
func escape(name string) string {
	plain := func(c byte) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_'
	}
	i := 0
	for i < len(name) && plain(name[i]) {
		i++
	}
	if i == len(name) {
		return name
	}
	b := []byte(name[:i])
	for ; i < len(name); i++ {
		if c := name[i]; plain(c) {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "%%%02x", c)
		}
	}
	return string(b)
}

// explain fills t from the states that the script found.
func (c *call) explain(t *weir.Transaction, reply any) error {
	now, said, states, err := c.read(t, reply)
	if err != nil {
		return err
	}
	if c.within == peek {
		decideOnly(t, now, states)
		return nil
	}
	if t.Decide(now, states) != (said == 1) {
		return fault(&t.Charges[0], "the script and the arithmetic disagree")
	}
	return nil
}

// read returns the time of a script in µs, how often the charges were spent, and
// the states as they were.
func (c *call) read(t *weir.Transaction, reply any) (now, spent int64, states []weir.State, err error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 3+len(t.Charges) && len(list) != 4 && !(c.logs && len(list) == 4+2*len(t.Charges)) {
		return 0, 0, nil, fault(&t.Charges[0], "the script's reply can't be read")
	}
	sec, err1 := number(list[0])
	usec, err2 := number(list[1])
	spent, ok = list[2].(int64)
	if err := errors.Join(err1, err2); err != nil || !ok {
		return 0, 0, nil, fault(&t.Charges[0], "the script's reply can't be read")
	}
	states = make([]weir.State, len(t.Charges))
	if c.logs {
		if !parseLogs(list[3:], states) {
			return 0, 0, nil, fault(&t.Charges[0], unreadable)
		}
		return sec*1e6 + usec, spent, states, nil
	}
	for i, found := range list[3:] {
		if found == nil {
			continue
		}
		text, ok := found.(string)
		switch {
		case !ok:
		case strings.HasPrefix(text, "="):
			ok = parseStates(text, t.Charges, states)
		case isLog(t.Charges[i].Limit.Algorithm):
			states[i], ok = parseLog(text)
		default:
			states[i], ok = parseState(text)
		}
		if !ok {
			return 0, 0, nil, fault(&t.Charges[i], unreadable)
		}
	}
	return sec*1e6 + usec, spent, states, nil
}

// decideOnly says whether everything fits, and what remains unspent.
func decideOnly(t *weir.Transaction, now int64, states []weir.State) {
	within := t.Within
	t.Within = 0
	if t.Decide(now, slices.Clone(states)) {
		for i := range t.Charges {
			l := &t.Charges[i].Limit
			_, t.Decisions[i] = l.Algorithm.Take(states[i], l, now, 0)
			t.Decisions[i].At = now
		}
	}
	t.Within = within
}

func number(x any) (int64, error) {
	s, _ := x.(string)
	return strconv.ParseInt(s, 10, 64)
}

// parseStates parses "=id:b,id:b;" and in 16 columns each at and every a, which
// are the states of charges, in their order. A b may be "b~until".
func parseStates(text string, charges []weir.Charge, states []weir.State) (ok bool) {
	header, numbers, _ := strings.Cut(text[1:], ";")
	if len(numbers) != 16*(1+len(charges)) {
		return false
	}
	column := func(i int) (int64, error) {
		return strconv.ParseInt(strings.TrimLeft(numbers[16*i:16*i+16], " "), 10, 64)
	}
	at, err := column(0)
	if err != nil {
		return false
	}
	for i := range charges {
		var one string
		one, header, _ = strings.Cut(header, ",")
		_, unit, _ := strings.Cut(one, ":")
		a, err := column(1 + i)
		states[i] = weir.State{At: at, A: a}
		if err != nil || !parseB(unit, &states[i]) {
			return false
		}
	}
	return true
}

// parseB parses "b" or "b~until".
func parseB(text string, s *weir.State) (ok bool) {
	b, until, has := strings.Cut(text, "~")
	var err error
	if s.B, err = strconv.ParseInt(b, 10, 64); err == nil && has {
		s.Until, err = strconv.ParseInt(until, 10, 64)
	}
	return err == nil
}

// parseState parses "at a b", with one space or more between them, or "at a b~until".
func parseState(text string) (s weir.State, ok bool) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return weir.State{}, false
	}
	var err1, err2 error
	s.At, err1 = strconv.ParseInt(fields[0], 10, 64)
	s.A, err2 = strconv.ParseInt(fields[1], 10, 64)
	if err1 != nil || err2 != nil || !parseB(fields[2], &s) {
		return weir.State{}, false
	}
	return s, true
}

const unreadable = "its state in Redis can't be read"

// fault returns an error that names the rule and the limit of a charge, and neither
// the key nor what is stored: both may be somebody's secret, and errors are logged.
func fault(c *weir.Charge, what string) error {
	return fmt.Errorf("redisstore: rule %q: limit %q (%s): %s", c.Rule, c.Limit.StoredName(), c.Limit.Algorithm.Name(), what)
}
