package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/period"
)

// Instead of a longest wait in µs, peek has a transaction decided and nothing spent,
// and forget has its states forgotten.
const (
	peek   = -1
	forget = -2
)

// longestWait returns how long t may wait in µs, or forget.
func longestWait(t *weir.Transaction) int64 {
	if t.Forget {
		return forget
	}
	return max(0, int64(min(t.Within, weir.MaxTicks*time.Microsecond)/time.Microsecond))
}

// take decides a transaction whose keys are all on one node.
func (s *Store) take(ctx context.Context, t *weir.Transaction) error {
	return s.decide(ctx, t, longestWait(t))
}

// decide has a script decide t, where within is the longest wait. It takes one call,
// unless a charge needs windows of a calendar that the script was not told of.
func (s *Store) decide(ctx context.Context, t *weir.Transaction, within int64) error {
	around := []int64{time.Now().UnixMicro()}
	for range 2 + 2*len(t.Charges) {
		c, err := s.newCall(t, within, 1, around)
		if err != nil {
			return err
		}
		reply, err := s.run(ctx, &c)
		if err == nil {
			return c.explain(reply, t)
		}
		at, ok := beyondEdges(err)
		if !ok {
			return c.blame(&t.Charges[0], err)
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
	*script
	keys   []string
	args   []any
	within int64
	times  int64 // how often the transaction is to be decided

	additive bool // calls that are alike may be one
}

// newCall names script, keys and arguments. around are instants whose windows the
// script may need.
func (s *Store) newCall(t *weir.Transaction, within, times int64, around []int64) (c call, err error) {
	if len(t.Charges) > mostCharges {
		return c, fmt.Errorf("redisstore: %d charges in one transaction: at most %d are allowed", len(t.Charges), mostCharges)
	}
	c.within, c.times = within, times
	var here [128]byte
	if name, cost := nameShape(t, here[:0], within); cost > 0 && times == 1 {
		if c.script, err = s.scripts.find(name, func() []shaped { return shapeOf(t) }); err != nil {
			return c, err
		}
		if c.script != nil {
			c.keys = []string{s.key(&t.Charges[0])}
			c.direct(t, cost)
		}
	}
	if c.script == nil {
		if c.script, err = s.scripts.general(t); err != nil {
			return c, err
		}
		c.general(s, t)
	}
	for i := range t.Charges {
		if e, ok := t.Charges[i].Limit.Algorithm.(Edged); ok {
			c.args = append(c.args, packEdges(e, around))
		}
	}
	return c, nil
}

// nameShape appends the name of the shape of t to name and returns what its charges
// cost, or 0 if no script of a shape decides it.
func nameShape(t *weir.Transaction, name []byte, within int64) (_ []byte, cost int64) {
	if within < 0 || t.Delay >= time.Microsecond || len(t.Charges) > maxDirect {
		return nil, 0
	}
	for i := range t.Charges {
		c, a := &t.Charges[i], t.Charges[i].Limit.Algorithm
		if c.Key != t.Charges[0].Key || c.Rule != t.Charges[0].Rule ||
			isLog(a) && c.Cost == 0 || isLog(a) != isLog(t.Charges[0].Limit.Algorithm) {
			return nil, 0
		}
		name = shaped{a, c.Cost == 0}.appendName(name)
		if c.Cost == 0 {
			continue
		}
		if _, queues := a.(weir.Queuer); c.Cost < 0 || cost != 0 && c.Cost != cost || queues && within > 0 {
			return nil, 0
		}
		cost = c.Cost
	}
	return name, cost
}

func shapeOf(t *weir.Transaction) []shaped {
	shape := make([]shaped, len(t.Charges))
	for i := range t.Charges {
		shape[i] = shaped{t.Charges[i].Limit.Algorithm, t.Charges[i].Cost == 0}
	}
	return shape
}

// direct adds the arguments of lua.direct.
func (c *call) direct(t *weir.Transaction, cost int64) {
	numbers := pack(make([]byte, 0, 16+24*len(t.Charges)), c.within, cost)
	c.additive = c.within == 0
	for i := range t.Charges {
		l := &t.Charges[i].Limit
		numbers = pack(numbers, numbersOf(l)...)
		_, additive := l.Algorithm.(Additive)
		c.additive = c.additive && additive
	}
	c.args = append(make([]any, 0, 3), idsOf(t), numbers)
}

// general adds the arguments of general.lua.
func (c *call) general(s *Store, t *weir.Transaction) {
	delay := max(0, min(int64(t.Delay/time.Microsecond), c.within))
	rows := pack(make([]byte, 0, 24+112*len(t.Charges)), c.within, delay, c.times)
	for i := range t.Charges {
		charge := &t.Charges[i]
		a := slices.Index(c.algorithms, charge.Limit.Algorithm.Name()) + 1
		name := s.key(charge)
		key := slices.Index(c.keys, name)
		if key < 0 {
			key = len(c.keys)
			c.keys = append(c.keys, name)
		}
		rows = pack(rows, int64(a), int64(key+1), charge.Cost)
		rows = pack(rows, numbersOf(&charge.Limit)...)
		rows = pack(rows, max(0, charge.Spent))
		rows = pack(rows, undoOf(t, i)...)
	}
	c.args = append(make([]any, 0, 3), idsOf(t), "", rows)
}

// pack appends what struct.unpack reads as '<d': doubles hold integers below 2^53.
func pack(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
	}
	return b
}

// unpack reads n ≤ len(b)/8 integers, and reports whether they are.
func unpack(b string, n int) (numbers []int64, ok bool) {
	numbers = make([]int64, n)
	for i := range numbers {
		x := math.Float64frombits(binary.LittleEndian.Uint64([]byte(b[8*i : 8*i+8])))
		numbers[i] = int64(x)
		if float64(numbers[i]) != x || math.Abs(x) >= 1<<53 {
			return nil, false
		}
	}
	return numbers, true
}

// numbersOf are what the Lua of a limit's algorithm gets of it.
func numbersOf(l *weir.Limit) []int64 {
	if m, ok := l.Algorithm.(Metered); ok {
		unit, rate, full := m.Meter(l)
		return []int64{unit, rate, full}
	}
	return []int64{l.Quota, int64(l.Period / time.Microsecond), l.Burst}
}

// undoOf is what undoes the i-th charge: At, A and B of the state after it, and the
// state before; of a log the instant of that alone.
func undoOf(t *weir.Transaction, i int) []int64 {
	if len(t.Undo) != len(t.Charges) || t.Charges[i].Cost >= 0 || t.Undo[i].After.At == 0 {
		return []int64{0, 0, 0, -1, 0, 0, 0}
	}
	u := &t.Undo[i]
	if u.Log {
		return []int64{0, 0, 0, u.Before.At, 0, 0, 0}
	}
	return []int64{u.After.At, u.After.A, u.After.B, u.Before.At, u.Before.A, u.Before.B, u.Until}
}

// packEdges packs the edges around each instant, and a 0 between them.
func packEdges(e Edged, around []int64) (b []byte) {
	for i, at := range around {
		if i > 0 {
			b = pack(b, 0)
		}
		b = pack(b, e.Edges(at)...)
	}
	return b
}

// idsOf names the states of t as a value does: "limit/algorithm,limit/algorithm;".
func idsOf(t *weir.Transaction) string {
	b := make([]byte, 0, 32*len(t.Charges))
	for i := range t.Charges {
		l := &t.Charges[i].Limit
		if l.Name == "" {
			b = period.Append(b, l.Period)
		} else {
			b = appendEscaped(b, l.Name)
		}
		b = append(appendEscaped(append(b, '/'), l.Algorithm.Name()), ',')
	}
	b[len(b)-1] = ';'
	return string(b)
}

// explain fills transactions that are alike from the states that the script found.
func (c *call) explain(reply any, ts ...*weir.Transaction) error {
	now, spent, states, err := c.read(ts[0], reply)
	if err != nil {
		return err
	}
	if c.within == peek {
		decideOnly(ts[0], now, states)
		return nil
	}
	for _, t := range ts {
		if t.Decide(now, states) {
			spent--
		}
	}
	if spent != 0 {
		return fault(&ts[0].Charges[0], "Redis and Go decide differently: the Lua of an algorithm is not the same function as its Take")
	}
	return nil
}

// read returns the time of a script in µs, how often the charges were spent, and
// the states as they were.
//
// A reply is packed doubles: the time, how often, and the state of each charge: four
// numbers, or of a log how many follow. If there is nothing behind the first two no key
// was ever seen. What stands between them and the states of fixed size is none of
// Go's business.
func (c *call) read(t *weir.Transaction, reply any) (now, spent int64, states []weir.State, err error) {
	if first, ok := reply.(int64); ok && 0 < -first && -first <= int64(len(t.Charges)) {
		return 0, 0, nil, fault(&t.Charges[-first-1], unreadable)
	}
	text, ok := reply.(string)
	logs := slices.ContainsFunc(t.Charges, func(c weir.Charge) bool { return isLog(c.Limit.Algorithm) })
	from := 16
	if !logs && len(text) > from {
		from = max(from, len(text)-32*len(t.Charges))
	}
	if !ok || len(text) < from || (len(text)-from)%8 != 0 {
		return 0, 0, nil, fault(&t.Charges[0], "the script's reply can't be read")
	}
	head, _ := unpack(text, 2)
	numbers, ok := unpack(text[from:], (len(text)-from)/8)
	if !ok {
		return 0, 0, nil, fault(&t.Charges[0], unreadable)
	}
	states = make([]weir.State, len(t.Charges))
	for i := range states {
		if len(text) == 16 {
			break
		}
		if isLog(t.Charges[i].Limit.Algorithm) {
			n := int(numbers[0])
			if states[i], ok = parseLog(numbers[1 : 1+n]); !ok {
				return 0, 0, nil, fault(&t.Charges[i], unreadable)
			}
			numbers = numbers[1+n:]
			continue
		}
		states[i] = weir.State{At: numbers[0], A: numbers[1], B: numbers[2], Until: numbers[3]}
		numbers = numbers[4:]
	}
	return head[0], head[1], states, nil
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
