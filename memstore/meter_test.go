package memstore

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// A plain algorithm hides that it is a meter, so that a store decides it through
// quota.State.
type plain struct {
	quota.Algorithm
	optional.Validator
	optional.Canceler
}

type plainQueue struct {
	plain
	optional.Queuer
}

// hidden hides that a limit is a meter. It returns other limits as they are.
func hidden(l quota.Limit) quota.Limit {
	if _, ok := l.Algorithm.(optional.Metered); !ok {
		return l
	}
	p := plain{l.Algorithm, l.Algorithm.(optional.Validator), l.Algorithm.(optional.Canceler)}
	l.Algorithm = p
	if q, ok := p.Algorithm.(optional.Queuer); ok {
		l.Algorithm = plainQueue{p, q}
	}
	return l
}

// A pair is two stores with the same seed that get the same transactions. The second store,
// theirs, gets only plain algorithms. If the stores have room for all states, the pair also
// keeps the states itself, and decides with Transaction.Decide.
type pair struct {
	*rand.Rand
	mine, theirs *Store
	limits       []quota.Limit
	former       []quota.Limit // the limits before their last changes
	keys         int
	a, b         quota.Transaction
	want         quota.Transaction
	spent        map[string]quota.Transaction // spent units, to be given back
	kept         map[string]kept              // by key and limit; nil if the stores may lose states
	heated       int                          // how many transactions of mine began with a charge of a hot state
}

type kept struct {
	quota.State
	end int64 // when the state decides as the zero State, in µs since 1970
}

func newPair(seed uint64) *pair {
	p := &pair{Rand: rand.New(rand.NewPCG(seed, 1)), spent: map[string]quota.Transaction{}}
	maxKeys := 1 << (3 + p.IntN(14)) // from 2^15 on there are several shards
	p.mine, p.theirs = New(Options{MaxKeys: maxKeys}), New(Options{MaxKeys: maxKeys})
	p.theirs.seed = p.mine.seed
	p.keys = 1 + p.IntN(2*maxKeys)
	if p.IntN(3) > 0 {
		p.keys = 1 + p.IntN(3)
		if maxKeys >= 64 {
			p.kept = map[string]kept{}
		}
	}
	for i := range 1 + p.IntN(8) {
		p.limits = append(p.limits, p.limit().Named(fmt.Sprint(i)))
	}
	p.former = slices.Clone(p.limits)
	return p
}

// number returns a random number from 1 to 2^20, small numbers as often as large ones.
func (p *pair) number() int64 { return 1 + p.Int64N(1<<p.IntN(21)) }

func (p *pair) limit() quota.Limit {
	for {
		units, period := p.number(), time.Duration(p.number())*time.Microsecond
		if p.IntN(20) == 0 { // a million a day: a unit is not a whole number of µs
			units, period = 1_000_000, 24*time.Hour
		}
		l := algorithms.GCRA(units, period)
		switch p.IntN(12) {
		case 0, 1:
			l = algorithms.TokenBucket(p.number(), units, period)
		case 2, 3:
			l = algorithms.LeakyBucket(p.number(), units, period)
		case 4:
			l = algorithms.SlidingWindow(units, period)
		case 5:
			l = algorithms.FixedWindow(units, period)
		case 6:
			l = algorithms.AnchoredWindow(units, period)
		case 7:
			l = algorithms.SlidingLog(units, period)
		}
		if l.Validate() == nil {
			return l
		}
	}
}

// change changes one number of one limit, or nothing if the limit would be invalid. Or it takes
// the change back, so that debts are charged under two limits in turn.
func (p *pair) change() {
	i := p.IntN(len(p.limits))
	l := &p.limits[i]
	old := *l
	switch p.IntN(6) {
	case 3, 4, 5:
		*l = p.former[i]
	case 0:
		l.Quota = p.number()
	case 1:
		l.Burst = p.number()
	case 2:
		l.Period = time.Duration(p.number()) * time.Microsecond
	}
	if l.Validate() != nil {
		*l = old
	}
	p.former[i] = old
}

// ask fills p.a with the next random transaction.
func (p *pair) ask() {
	p.a.Charges, p.a.Mode, p.a.Within, p.a.Most, p.a.Cancels = p.a.Charges[:0], quota.ModeSpend, 0, 0, nil
	if p.IntN(8) == 0 {
		p.a.Within = time.Duration(p.number()) * time.Microsecond
	}
	key := fmt.Sprint(p.IntN(p.keys))
	if old, ok := p.spent[key]; ok && p.IntN(2) == 0 {
		delete(p.spent, key)
		p.a.Within, p.a.Cancels = 0, old.Undo
		for i, c := range old.Charges {
			c.Cost, c.Spent = -max(0, c.Cost), old.Decisions[i].At
			p.a.Charges = append(p.a.Charges, c)
		}
		return
	}
	for _, i := range p.Perm(len(p.limits))[:1+p.IntN(len(p.limits))] {
		l := p.limits[i]
		c := quota.Charge{Rule: "test", Key: key, Limit: l, Cost: 1}
		switch p.IntN(10) {
		case 0:
			c.Cost = 0
		case 1:
			c.Cost = -p.number()
		case 2:
			c.Cost = p.number()
		case 3:
			c.Cost = l.Capacity() + p.Int64N(3) - 1
		}
		if p.a.Charges = append(p.a.Charges, c); p.IntN(2) == 0 {
			break
		}
		if p.IntN(20) == 0 {
			key = fmt.Sprint(p.IntN(p.keys))
		}
	}
	p.mode()
}

// mode sometimes sets another Mode than ModeSpend, if that is valid.
func (p *pair) mode() {
	if p.IntN(6) > 0 {
		return
	}
	if p.a.Mode = quota.Mode(p.IntN(5)); p.a.Mode == quota.ModeAtMost {
		p.a.Most = p.number()
	}
	if p.a.Validate() != nil {
		p.a.Mode, p.a.Most = quota.ModeSpend, 0
	}
}

// TestMetersAlike: the code of meter.go and hot.go decides as the algorithms of the meters do, in
// every field, and stores the same states. A store decides as Transaction.Decide does with
// the same states, under every algorithm, while the numbers of limits change.
func TestMetersAlike(t *testing.T) {
	want, decided, heated := rounds.N(25_000, 250_000), 0, 0
	for seed := uint64(0); decided < want; seed++ {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(seed)
			for range 300 {
				if p.IntN(8) == 0 {
					p.change()
				}
				p.ask()
				p.compare(t, seed)
				decided += len(p.a.Charges) + p.repeat(t, seed)
				if p.IntN(3) > 0 {
					time.Sleep(time.Duration(p.Int64N(1<<p.IntN(22))) * time.Microsecond)
				}
			}
			heated += p.heated
		})
		if t.Failed() {
			return
		}
	}
	if heated < want/50 {
		t.Errorf("%d of %d transactions began with a charge of a hot state, want more", heated, decided)
	}
}

// repeat repeats a refused transaction of one charge up to 15 times, in about half of the calls.
// It returns how many decisions it has compared.
func (p *pair) repeat(t *testing.T, seed uint64) (decided int) {
	for n := p.IntN(32) - 16; decided < n && len(p.a.Charges) == 1 && !p.a.Allowed(); decided++ {
		time.Sleep(time.Duration(p.IntN(3)) * time.Microsecond)
		p.compare(t, seed)
	}
	return decided
}

// compareKept decides p.want with the states of the pair, and compares the results with those
// of the stores.
func (p *pair) compareKept(t *testing.T, seed uint64) {
	got, want, now := &p.a, &p.want, p.a.At.UnixMicro()
	var names []string
	var states []quota.State
	for i := range want.Charges {
		c := &want.Charges[i]
		names = append(names, fmt.Sprint(c.Key, " ", c.Limit.Name, " ", c.Limit.Period))
		k := p.kept[names[i]]
		if k.end <= now {
			k.State = quota.State{} // a store forgets a state that has ended
		}
		states = append(states, k.State)
	}
	before := fmt.Sprintf("%+v", states)
	spent := want.Decide(now, states)
	if !slices.Equal(got.Decisions, want.Decisions) || got.Wait != want.Wait || got.Granted != want.Granted {
		t.Fatalf("seed %d: %+v of states %s:\ngot  %+v, wait %v, granted %d\nwant %+v, wait %v, granted %d", seed, got.Charges, before,
			got.Decisions, got.Wait, got.Granted, want.Decisions, want.Wait, want.Granted)
	}
	for i := range states {
		switch {
		case want.Mode == quota.ModeForget:
			delete(p.kept, names[i])
		case want.Charges[i].Cost < 0 && len(states[i].Log) == 0 && reflect.DeepEqual(states[i], p.kept[names[i]].State):
			// there were no units to give back, so the end of the state stays
		case spent && want.Charges[i].Cost != 0:
			p.kept[names[i]] = kept{states[i], now + want.Decisions[i].ResetAfter.Microseconds()}
		}
	}
}

func (p *pair) compare(t *testing.T, seed uint64) {
	a, b := &p.a, &p.b
	b.SetQuestion(a)
	p.want.SetQuestion(a)
	for i := range b.Charges {
		if a.Mode != quota.ModeForce { // then Decide itself needs to know that a limit is a meter
			b.Charges[i].Limit = hidden(b.Charges[i].Limit)
		}
	}
	if a.Validate() == nil && p.IntN(2) == 0 && p.mine.heat(a) {
		p.heated++
	}
	errA, errB := p.mine.Take(t.Context(), a), p.theirs.Take(t.Context(), b)
	if fmt.Sprint(errA) != fmt.Sprint(errB) {
		t.Fatalf("seed %d: %+v: got error %v, want %v", seed, a.Charges, errA, errB)
	}
	if errA == nil && (!slices.Equal(a.Decisions, b.Decisions) || !a.At.Equal(b.At) || a.Wait != b.Wait || !reflect.DeepEqual(a.Undo, b.Undo)) {
		t.Fatalf("seed %d: %+v:\ngot  %+v, wait %v, %v\nwant %+v, wait %v, %v", seed, a.Charges, a.Decisions, a.Wait, a.Undo, b.Decisions, b.Wait, b.Undo)
	}
	if errA == nil && p.kept != nil {
		p.compareKept(t, seed)
	}
	p.compareTables(t, seed)
	if errA == nil && a.Allowed() && (a.Wait > 0 || p.IntN(4) == 0) {
		p.spent[a.Charges[0].Key] = quota.Transaction{Charges: slices.Clone(a.Charges), Result: quota.Result{Decisions: slices.Clone(a.Decisions), Undo: slices.Clone(a.Undo)}}
	}
}

// compareTables compares the tables of the stores. It first recalls the hot states of mine, if there
// are any, but only in some calls, so that other calls find hot states.
func (p *pair) compareTables(t *testing.T, seed uint64) {
	if p.IntN(4) > 0 {
		return
	}
	for i := range p.mine.shards {
		sh := &p.mine.shards[i]
		sh.mu.Lock()
		sh.recall(sh.last)
		sh.mu.Unlock()
		if want := p.theirs.shards[i].table; !slices.Equal(sh.table, want) {
			t.Fatalf("seed %d: %+v: got states\n%+v, want\n%+v", seed, p.a.Charges, sh.table, want)
		}
	}
}
