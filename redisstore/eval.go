package redisstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// A script may get one of these values instead of the longest wait. With peek, the script makes
// decisions but spends nothing. With forget, it deletes the states. With force, it also spends
// charges that do not fit.
const (
	peek   = -1
	forget = -2
	force  = -3
)

// longestWait returns the longest wait that t accepts, in µs, or one of the values peek, forget and
// force.
func longestWait(t *quota.Transaction) int64 {
	switch t.Mode {
	case quota.ModePeek:
		return peek
	case quota.ModeForget:
		return forget
	case quota.ModeForce:
		return force
	}
	return max(0, int64(min(t.Within, quota.MaxTicks*time.Microsecond)/time.Microsecond))
}

// take evaluates a transaction.
func (s *Store) take(ctx context.Context, t *quota.Transaction) error {
	if parts := s.split(t); parts != nil {
		for i := range parts {
			parts[i].ctx = ctx
		}
		return takeParts(t, parts, s.takeOne)
	}
	return s.takeOne(ctx, t)
}

// takeOne evaluates a transaction whose keys are in one slot. It makes one call, and another call
// for each calendar window that the script needs but does not have.
func (s *Store) takeOne(ctx context.Context, t *quota.Transaction) error {
	var beyond []int64
	for range 2 + 2*len(t.Charges) {
		e := &eval{ts: []*quota.Transaction{t}}
		if err := s.prepare(e, beyond...); err != nil {
			return err
		}
		cmds, err := s.send(ctx, e)
		if err == nil {
			err = e.decide(s, cmds[0])
		}
		at, ok := beyondEdges(err)
		if !ok {
			return err
		}
		// The script has made no decision, because a calendar window was missing. Either the clocks
		// of Redis and this process are far apart, or a reservation lies beyond the windows that
		// were sent.
		beyond = append(beyond, at)
	}
	return faultOf(&t.Charges[0], "the windows of a calendar lie out of reach")
}

// mostCharges is the maximum number of charges in a transaction. A command has up to two arguments
// for each charge, and Redis closes the connection if a command has more than a million arguments.
// Long before that, a transaction takes longer than Timeout.
const mostCharges = 10_000

// An eval represents one run of a script that evaluates transactions with equal charges.
type eval struct {
	ts []*quota.Transaction
	of []int // the indexes of the transactions in the batch

	*script
	values []value
	args   []any // the arguments of the command; the method command sets the first two
}

// A value represents a value in Redis. The charges that a script receives and the states that it
// returns are grouped by value.
type value struct {
	key, ids string // see idsOf
	charges  []int  // the indexes of the charges whose states are in the value
}

// prepare finds the script of e and writes the arguments of its command. The script gets the calendar
// windows around the current time, and around the instants beyond them.
func (s *Store) prepare(e *eval, beyond ...int64) error {
	t := e.ts[0]
	if len(t.Charges) > mostCharges {
		return fmt.Errorf("redisstore: the transaction has %d charges; want at most %d", len(t.Charges), mostCharges)
	}
	e.values = s.valuesOf(t)
	var here [maxDirect]shaped
	direct := e.direct()
	shape := e.shape(here[:0], direct)
	if direct && !isDirect(shape) {
		direct, shape = false, e.shape(here[:0], false)
	}
	x, own, err := s.scripts.find(shape)
	if err != nil {
		return err
	}
	e.script, direct = x, direct && own
	n := len(e.values)
	e.args = make([]any, 3+3*n, 5+3*n)
	e.args[2] = n
	for i := range e.values {
		v := &e.values[i]
		v.ids = idsOf(t, v.charges)
		var numbers []byte // if empty, general.lua evaluates e
		if direct {
			numbers = e.numbers(v)
		}
		e.args[3+i], e.args[3+n+2*i], e.args[4+n+2*i] = v.key, v.ids, numbers
		for _, j := range v.charges {
			if a, ok := t.Charges[j].Limit.Algorithm.(edged); ok {
				e.args = append(e.args, packEdges(a, beyond))
			}
		}
	}
	if !direct {
		e.args = append(e.args, e.rows())
	}
	if s.clock != nil {
		e.args = append(e.args, nil) // see server.Do
	}
	return nil
}

// valuesOf returns the values of the charges of t.
func (s *Store) valuesOf(t *quota.Transaction) []value {
	values, key := make([]value, 0, 2), ""
	for i := range t.Charges {
		c, last := &t.Charges[i], &t.Charges[max(0, i-1)]
		if i == 0 || c.Key != last.Key || c.Rule != last.Rule || isLog(c.Limit.Algorithm) != isLog(last.Limit.Algorithm) {
			key = s.key(c)
		}
		k := 0
		for k < len(values) && values[k].key != key {
			k++
		}
		if k == len(values) {
			values = append(values, value{key: key})
		}
		values[k].charges = append(values[k].charges, i)
	}
	return values
}

// direct reports whether the direct part of a script can evaluate e, unless there are too many charges:
// see generate. Otherwise, general.lua must evaluate e.
func (e *eval) direct() bool {
	t := e.ts[0]
	if several, undoes := len(e.ts) > 1, len(t.Cancels) > 0; several || undoes || t.Mode != quota.ModeSpend {
		return false
	}
	spends := false
	for k := range e.values {
		cost, ok := e.costOf(&e.values[k])
		if !ok {
			return false
		}
		spends = spends || cost != 0
	}
	return spends // charges that only look are evaluated by general.lua
}

// costOf returns the cost that the charges of a value have in common, ignoring charges with a cost
// of 0. It returns false if the costs differ, or if general.lua must evaluate one of the charges.
func (e *eval) costOf(v *value) (cost int64, ok bool) {
	for _, i := range v.charges {
		c := &e.ts[0].Charges[i]
		_, queues := c.Limit.Algorithm.(optional.Queuer)
		switch {
		case c.Cost <= 0 && isLog(c.Limit.Algorithm): // logs.lua can only spend
			return 0, false
		case c.Cost > 0 && queues && longestWait(e.ts[0]) > 0: // waits in a queue
			return 0, false
		case c.Cost != 0 && cost != 0 && c.Cost != cost:
			return 0, false
		}
		cost = cmp.Or(cost, c.Cost)
	}
	return cost, true
}

// shape appends the shape of e to s. If direct is false, it appends only the algorithms of e.
func (e *eval) shape(s []shaped, direct bool) []shaped {
	t := e.ts[0]
	if !direct {
		for i := range t.Charges {
			s = insert(s, t.Charges[i].Limit.Algorithm)
		}
		return s
	}
	for k := range e.values {
		for j, i := range e.values[k].charges {
			s = append(s, shaped{t.Charges[i].Limit.Algorithm, kindOf(&t.Charges[i]), k > 0 && j == 0})
		}
	}
	return s
}

// kindOf returns what a script does with a charge.
func kindOf(c *quota.Charge) kind {
	switch _, cancelable := c.Limit.Algorithm.(optional.Canceler); {
	case c.Cost == 0:
		return looks
	case c.Cost < 0 && c.Spent > 0 && cancelable:
		return cancels
	case c.Cost > 0 && c.Headroom > 0 && !isLog(c.Limit.Algorithm):
		return leaves
	}
	return spends
}

// numbers packs the numbers that a section of a script reads. For each charge, these are the
// constants of the limit and, if the section needs it, the charge's Spent or Headroom. Then follow
// the common cost (see costOf) and the longest wait.
func (e *eval) numbers(v *value) []byte {
	b, cost := make([]byte, 0, 8*(2+4*len(v.charges))), int64(0)
	for _, i := range v.charges {
		charge := &e.ts[0].Charges[i]
		b = pack(b, numbersOf(charge, quota.ModeSpend)...)
		switch kindOf(charge) {
		case cancels:
			b = pack(b, charge.Spent)
		case leaves:
			b = pack(b, charge.Headroom)
		}
		cost = cmp.Or(cost, charge.Cost)
	}
	return pack(b, cost, longestWait(e.ts[0]))
}

// rows returns the last argument that general.lua reads.
func (e *eval) rows() (rows []byte) {
	t := e.ts[0]
	times := int64(len(e.ts))
	if t.Mode == quota.ModeAtMost {
		times = -min(t.Most, quota.MaxTicks)
	}
	width := 7
	if len(t.Cancels) > 0 {
		width = 15
	}
	rows = pack(make([]byte, 0, 8*(3+len(e.values)+width*len(t.Charges))), longestWait(t), times, int64(width))
	for _, v := range e.values {
		rows = pack(rows, int64(len(v.charges)))
	}
	for _, v := range e.values {
		for _, i := range v.charges {
			charge := &t.Charges[i]
			rows = pack(rows, int64(slices.Index(e.algorithms, charge.Limit.Algorithm.Name())+1), charge.Cost)
			rows = pack(rows, numbersOf(charge, t.Mode)...)
			headroom := charge.Headroom
			if isLog(charge.Limit.Algorithm) { // see numbersOf
				headroom = 0
			}
			rows = pack(rows, max(0, charge.Spent), headroom)
			if width > 7 {
				rows = pack(rows, undoOf(t, i)...)
			}
		}
	}
	return rows
}

// pack appends numbers as doubles, which Lua reads with struct.unpack('<d'). A double holds
// integers below 2^53 exactly.
func pack(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
	}
	return b
}

// unpack reads doubles and reports whether all of them are integers below 2^53.
func unpack(b string) (numbers []int64, ok bool) {
	numbers = make([]int64, len(b)/8)
	ok = true
	for i := range numbers {
		x := math.Float64frombits(binary.LittleEndian.Uint64([]byte(b[8*i : 8*i+8])))
		numbers[i] = int64(x)
		ok = ok && float64(numbers[i]) == x && math.Abs(x) < 1<<53
	}
	return numbers, ok
}

// numbersOf returns the three numbers of the limit of c that are passed to the Lua code of its
// algorithm. For a log, a headroom is equivalent to a smaller quota.
func numbersOf(c *quota.Charge, mode quota.Mode) []int64 {
	l := &c.Limit
	units := l.Quota
	if mode < quota.ModeForce && isLog(l.Algorithm) {
		units = max(0, units-c.Headroom)
	}
	return []int64{units, int64(l.Period / time.Microsecond), l.Burst}
}

// undoOf returns the last eight numbers in the row of charge i. If this charge refunds a
// reservation, these numbers undo the reservation: they are the At, A and B of the state after the
// reservation, followed by the state before the reservation. For a log, only the At of the earlier
// state is used.
func undoOf(t *quota.Transaction, i int) []int64 {
	if len(t.Cancels) != len(t.Charges) || t.Charges[i].Cost >= 0 || t.Cancels[i].After.At == 0 {
		return []int64{0, 0, 0, -1, 0, 0, 0, 0}
	}
	u := &t.Cancels[i]
	if u.Log {
		return []int64{0, 0, 0, u.Before.At, 0, 0, 0, 0}
	}
	return []int64{u.After.At, u.After.A, u.After.B, u.Before.At, u.Before.A, u.Before.B, u.Until, u.Before.C}
}

// packEdges packs the edges of the windows around the current time and around each of the instants,
// as Scripted describes. A 0 separates the edges around different instants.
func packEdges(e edged, beyond []int64) (b []byte) {
	b = pack(b, e.Edges(time.Now().UnixMicro())...)
	for _, at := range beyond {
		b = pack(pack(b, 0), e.Edges(at)...)
	}
	return b
}

// idsOf returns the ids of the states of some charges of t, in the format of a value:
// "name/period/algorithm,name/period/algorithm;". If the name is the same as the period, the id has
// no name.
func idsOf(t *quota.Transaction, charges []int) string {
	b := make([]byte, 0, 32*len(charges))
	for _, i := range charges {
		l := &t.Charges[i].Limit
		var here [period.Size]byte
		p := period.Append(here[:0], l.Period)
		if l.Name != "" && l.Name != string(p) {
			b = append(appendEscaped(b, l.Name), '/')
		}
		b = append(b, p...)
		b = append(appendEscaped(append(b, '/'), l.Algorithm.Name()), ',')
	}
	b[len(b)-1] = ';'
	return string(b)
}

// decide fills in the results of the transactions of e. It evaluates them again in Go, from
// the states that the script has found.
func (e *eval) decide(s *Store, cmd queue.Cmd) error {
	first := &e.ts[0].Charges[0]
	reply, err := cmd.Result()
	if err != nil {
		return s.blame(e, err)
	}
	now, spent, states, err := e.read(reply)
	if err != nil {
		return err
	}
	for _, t := range e.ts {
		switch {
		case !t.Decide(now, states):
		case t.Mode == quota.ModeAtMost:
			spent -= t.Granted
		default:
			spent--
		}
	}
	if spent != 0 {
		return faultOf(first, "Redis and Go decide differently: the Lua of an algorithm is not the same function as its Take")
	}
	return nil
}

// read parses the reply of a script: the time of Redis in µs since 1970, how often the script has
// spent the charges, and the states that it has found.
//
// The integer −n means that the n-th value cannot be read. Any other valid reply is a text followed
// by packed doubles. The text contains the seconds and microseconds of the time, how often the
// script has spent the charges, and a semicolon. The doubles represent the states, grouped by
// value: see parseState. The ids in a value may precede the states of that value, unless these are
// logs. For a reply in any other format, read returns an error, and no decision is made.
func (e *eval) read(reply any) (now, spent int64, states []quota.State, err error) {
	charges := e.ts[0].Charges
	if n, ok := reply.(int64); ok && 0 < -n && -n <= int64(len(e.values)) {
		return 0, 0, nil, faultOf(&charges[e.values[-n-1].charges[0]], unreadable)
	}
	text, _ := reply.(string)
	seconds, text, _ := strings.Cut(text, " ")
	micros, text, _ := strings.Cut(text, " ")
	times, text, found := strings.Cut(text, ";")
	s, err1 := strconv.ParseUint(seconds, 10, 33) // up to the year 2242, and s*1e6 < 2^53
	µs, err2 := strconv.ParseUint(micros, 10, 32)
	spent, err3 := strconv.ParseInt(times, 10, 64)
	if cmp.Or(err1, err2, err3) != nil || µs >= 1e6 || !found {
		return 0, 0, nil, faultOf(&charges[0], "the script's reply can't be read")
	}
	states = make([]quota.State, len(charges))
	for _, v := range e.values {
		text = strings.TrimPrefix(text, v.ids)
		for _, i := range v.charges {
			if states[i], text, found = parseState(text, isLog(charges[i].Limit.Algorithm)); !found {
				return 0, 0, nil, faultOf(&charges[i], unreadable)
			}
		}
	}
	if text != "" {
		return 0, 0, nil, faultOf(&charges[0], "the script's reply can't be read")
	}
	return int64(s)*1e6 + int64(µs), spent, states, nil
}

// parseState parses a state and returns the rest of the text. A state consists of four numbers: At,
// A, B, and Until, or −C instead of Until if C is not 0. A log begins with a count of the numbers
// that follow the count: At, Until, and pairs of a sum and an instant. For an empty log, the count
// is 0 and no numbers follow. The pairs are the entries that the arithmetic will need, in any
// order. An entry may occur more than once.
func parseState(text string, log bool) (s quota.State, rest string, ok bool) {
	count := 4
	if log {
		n, ok := unpack(text[:min(8, len(text))])
		if !ok || len(n) == 0 || n[0] < 0 || n[0] > int64(len(text)/8) || n[0]%2 != 0 {
			return s, "", false
		}
		count, text = int(n[0]), text[8:]
	}
	if len(text) < 8*count {
		return s, "", false
	}
	list, ok := unpack(text[:8*count])
	rest = text[8*count:]
	if !ok {
		return s, "", false
	}
	if !log {
		return quota.State{At: list[0], A: list[1], B: list[2], C: max(0, -list[3])}, rest, true
	}
	if len(list) == 0 {
		return s, rest, true
	}
	s.At = list[0]
	for i := 2; i < len(list); i += 2 {
		s.Log = append(s.Log, quota.LogEntry{Sum: list[i], At: list[i+1]})
	}
	slices.SortFunc(s.Log, func(a, b quota.LogEntry) int { return cmp.Compare(a.Sum, b.Sum) })
	s.Log = slices.Compact(s.Log)
	last := quota.LogEntry{}
	for _, e := range s.Log {
		if e.Sum <= last.Sum || e.At < last.At {
			return s, rest, false
		}
		last = e
	}
	return s, rest, true
}
