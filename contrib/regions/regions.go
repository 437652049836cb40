// Package regions enforces limits across several regions. Each region makes decisions in its own
// store, without a round trip to another region.
//
//	eu := regions.New(local, central, regions.Options{Budget: "gpu", Region: "eu", Regions: 3})
//	go eu.Run(ctx)
//	limiter, err := weir.New(eu, weir.Options{Rules: rules})
//
// Each region has a share of each limit. If a region does not use its share, other regions can use
// the share within a few seconds. The file README.md in this directory compares this package with a
// single distant store and with [quota.Share].
package regions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// Options are the options for New. Budget, Region and Regions are required.
type Options struct {
	// Budget is the name of the budget in the central store. A Store has one budget, so the region
	// has the same share of every limit, for all rules and keys. If the demand under one rule
	// varies independently of other rules, give that rule a separate Store with a separate Budget.
	Budget string

	// Region is the name of the region. All processes in a region share the local store.
	Region string

	// Regions is the number of regions, from 1 to 100. It must be the same in all regions.
	Regions int

	// Every is the length of the intervals for which a region claims its share, in whole
	// milliseconds; 0 means 2 s. It must be the same in all regions, and longer than four round
	// trips to the central store.
	Every time.Duration

	// Logger receives a line when the central store fails, another when it recovers, and one if Run
	// is not called; nil means slog.Default().
	Logger *slog.Logger
}

// The constant whole is the number of parts in a budget.
const whole = 10_000

// New returns a Store that divides each limit among the regions, and enforces this region's share
// in the local store. Run claims this share in the central store.
//
// Under GCRA and TokenBucket, the rate is divided among the regions according to demand, whereas
// the burst is divided evenly. In each interval (of length Options.Every), a region claims the
// share of the rate that it needs for the next interval, based on its recent demand. A region's
// share is never less than a tenth of an even share. If a region stops using its share, other
// regions can claim it after one or two intervals. The part of the rate that no region needs is
// divided evenly. Limits with other algorithms, including LeakyBucket, are always divided evenly,
// as by quota.Share.
//
// Together, the regions admit no more than one store would: at most burst + quota·d/Period units in
// any period of length d. This bound holds even while shares change: see README.md.
//
// The bound requires that a call to the local store takes at most a sixteenth of Options.Every. A
// request that waits (Transaction.Within) gets a slot at the current rate, even if the region loses
// that rate before the slot begins. Shares are rounded down, but are at least one unit. Together,
// the regions may therefore admit more than the limit if the burst is smaller than the number of
// regions, or if the quota is smaller than ten times that number.
//
// If the central store fails or no call to Run is active, the region keeps its share until the
// current interval ends. After that, it has only a tenth of an even share. If the central store's
// clock jumps, two regions may use the same share for one interval.
//
// New panics if its arguments are invalid.
func New(local, central quota.Store, o Options) *Store {
	o.Every = cmp.Or(o.Every, 2*time.Second)
	switch {
	case safe.Nil(local):
		panic("regions: local is nil")
	case safe.Nil(central):
		panic("regions: central is nil")
	case o.Regions < 1 || o.Regions > whole/100:
		panic(fmt.Sprintf("regions: Regions is %d; want 1 to %d", o.Regions, whole/100))
	case o.Budget == "":
		panic("regions: Budget is empty")
	case o.Region == "":
		panic("regions: Region is empty")
	case o.Every < time.Millisecond || o.Every%time.Millisecond != 0:
		panic(fmt.Sprintf("regions: Every is %v; want whole milliseconds, at least 1", o.Every))
	}
	s := &Store{local: local, central: central, o: o, start: time.Now()}
	if err := s.parts(regionPrefix+o.Region, 1).Validate(); err != nil {
		panic("regions: Region: " + err.Error())
	}
	s.log = cmp.Or(o.Logger, slog.Default())
	s.kept = whole / 10 / int64(o.Regions)
	if o.Regions == 1 {
		s.kept = whole
	}
	s.free = whole - s.kept*int64(o.Regions)
	s.known.Store(&regionView{})
	s.held = []holding{{0, s.kept}}
	return s
}

// A Store enforces its region's share of each limit. See New.
type Store struct {
	local      quota.Store
	central    quota.Store
	o          Options
	log        *slog.Logger
	start      time.Time
	runs       atomic.Bool // Run was called, or a line says that it was not
	kept, free int64       // the parts that each region always has, and the parts that any region can claim

	wanted atomic.Int64 // how long, in ns, it takes to admit the requested units at the whole rate
	known  atomic.Pointer[regionView]

	present atomic.Pointer[present]
	mu      sync.Mutex // guards held
	held    []holding  // the parts rise; the first part is kept

	since  time.Duration // when wanted was last read, as the time since start
	demand float64       // the part of the whole budget that the region needs, 0 to 1
	left   int64         // how many parts were free at the last claim
	failed bool
}

// Part returns the region's current share of the rate, as a fraction between 0 and 1. Near the
// boundary between two intervals, it returns the smaller of the shares for these intervals.
func (s *Store) Part() float64 { return float64((*s.loadPast())[0].part) / whole }

// Take implements quota.Store.
func (s *Store) Take(ctx context.Context, t *quota.Transaction) error {
	if err := t.Validate(); err != nil {
		return err
	}
	part := new(quota.Transaction)
	part.SetQuestion(t)
	s.share(part.Charges)
	if !s.runs.Load() && s.o.Regions > 1 && time.Since(s.start) > s.o.Every && !s.runs.Swap(true) {
		s.log.Warn("regions: method Run not called", "region", s.o.Region, "effect", "the region has a tenth of its even share", "fix", "call go store.Run(ctx) after New")
	}
	err := s.local.Take(ctx, part)
	if err == nil {
		for i := range part.Charges {
			if b, ok := part.Charges[i].Limit.Algorithm.(bucket); ok {
				b.shorten(&part.Decisions[i])
			}
		}
		t.SetResult(&part.Result)
	}
	return err
}

// Announce implements optional.Announcer, for a local store that is one, such as a stack.Store.
func (s *Store) Announce(rule string, limits []quota.Limit) {
	if local, ok := s.local.(optional.Announcer); ok {
		local.Announce(rule, limits)
	}
}

// share replaces the limits of charges with those of this region, and adds to s.wanted how much of
// the rate the charges need.
func (s *Store) share(charges []quota.Charge) {
	past, need := s.loadPast(), 0.0
	for i := range charges {
		c := &charges[i]
		undivided, n := c.Limit, int64(s.o.Regions)
		fits := c.Headroom > 0 && c.Headroom < undivided.Capacity()
		if s.divide(&c.Limit, past) {
			need = max(need, min(1, float64(c.Cost)/float64(undivided.Quota))*float64(undivided.Period))
		}
		if c.Headroom = (c.Headroom + n - 1) / n; fits { // as in quota.Share
			c.Headroom = min(c.Headroom, c.Limit.Capacity()-1)
		}
	}
	s.wanted.Add(int64(min(need, 2*float64(s.o.Every)))) // a larger number would not change the demand, but the sum could overflow
}

// divide changes l to the limit of this region, and reports whether the rate of this limit depends
// on the region's part. If the algorithm is GCRA or TokenBucket, the limit gets an even share of
// the burst, and the algorithm becomes a bucket, which uses the region's part of the rate. Other
// limits get an even share of the quota and of the burst.
func (s *Store) divide(l *quota.Limit, past *past) (moves bool) {
	n := s.o.Regions
	_, moves = l.Algorithm.(optional.Metered)
	_, queue := l.Algorithm.(optional.Queuer)
	switch moves = moves && !queue; {
	case n == 1:
		return moves
	case !moves:
		l.Divide(n)
		return false
	}
	b := bucket{past, l.Quota, l.Algorithm.Name()}
	l.Burst = max(1, cmp.Or(l.Burst, l.Quota)/int64(n))
	if !countable(max(b.quota, l.Burst), l.Period) { // half of the quota in half of the period may be countable, and so on
		l.Name = l.Label()
		for ; !countable(max(b.quota, l.Burst), l.Period); b.quota /= 2 {
			l.Period = (l.Period/2 + time.Microsecond).Truncate(time.Microsecond)
		}
	}
	l.Quota, l.Algorithm = b.rate(0), b
	return true
}

// countable reports whether n units are less than quota.MaxTicks ticks under a limit with the given
// period.
func countable(n int64, period time.Duration) bool {
	return float64(n)*float64(period.Microseconds()) < quota.MaxTicks
}

// Run repeatedly claims the region's share until ctx is done, and then returns ctx.Err(). Run
// blocks, so call it in a separate goroutine.
func (s *Store) Run(ctx context.Context) error {
	s.runs.Store(true)
	tick := time.NewTicker(s.o.Every / 4)
	defer tick.Stop()
	for {
		if err := s.claim(ctx); err != nil && ctx.Err() == nil && !s.failed {
			s.failed = true
			s.log.Warn("regions: central store failed", "region", s.o.Region, "err", err, "effect", "the region keeps its share until the interval ends, and then has a tenth of its even share")
		} else if err == nil && s.failed {
			s.failed = false
			s.log.Info("regions: central store answers again", "region", s.o.Region)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

const regionPrefix = "region "

// parts returns the limit under which the central store counts the claims of all regions together,
// or of a single region.
func (s *Store) parts(name string, most int64) quota.Limit {
	return algorithms.AnchoredWindow(most, 4*s.o.Every).Named(name)
}

// claim claims the parts of the rate that the region needs in the next span, or fewer if fewer are
// free. In the first half of the current span it claims at most an even share, so that every region
// can get one. The first claim of a process is an even share of the current span.
func (s *Store) claim(ctx context.Context) error {
	s.measure()
	k, even := s.known.Load(), s.free/int64(s.o.Regions)
	if !k.at {
		if _, err := s.claimParts(ctx, 0, 0, s.free); err != nil { // claims nothing, but measures the central store's clock
			return err
		}
		return s.takeFree(ctx, int64((time.Since(s.start)+s.known.Load().hi)/s.o.Every), even, even)
	}
	clock := time.Since(s.start) + k.hi
	n, most := int64(clock/s.o.Every)+1, s.free
	if clock%s.o.Every < s.o.Every/2 {
		most = even
	}
	lacks := max(0, min(int64(s.demand*whole)-s.kept, most)-k.claimed(n))
	if clock%s.o.Every >= s.o.Every*3/4 { // by now the other regions have claimed what they need; claim more, because demand may rise
		lacks = max(lacks, s.left/int64(s.o.Regions))
	}
	return s.takeFree(ctx, n, lacks, most)
}

// takeFree claims the given number of parts of span n, or all free parts if fewer are free.
func (s *Store) takeFree(ctx context.Context, n, parts, most int64) error {
	left, err := s.claimParts(ctx, n, parts, most)
	if err == nil && 0 < left && left < parts {
		_, err = s.claimParts(ctx, n, left, most)
	}
	return err
}

// measure updates the demand, once per Every. The demand is 1.2 times the rate that recent requests
// have needed, because the number of requests varies. It falls by at most half each time.
func (s *Store) measure() {
	now := time.Since(s.start)
	if took := now - s.since; took >= s.o.Every {
		s.demand = min(1, max(s.demand/2, 1.2*float64(s.wanted.Swap(0))/float64(took)))
		s.since = now
	}
}

// claimParts claims the given number of parts of span n, unless the region would then have more
// parts of that span than the given maximum. Afterwards, s.known records how many parts the region
// has. If fewer parts are free, nothing is claimed, and left is the number of free parts.
func (s *Store) claimParts(ctx context.Context, n, parts, most int64) (left int64, err error) {
	key := s.o.Budget + " " + strconv.FormatInt(n, 10)
	t := quota.Transaction{Charges: []quota.Charge{
		{Rule: "regions", Key: key, Limit: s.parts("all", s.free), Cost: parts},
		{Rule: "regions", Key: key, Limit: s.parts(regionPrefix+s.o.Region, most), Cost: parts},
	}}
	sent := time.Since(s.start)
	if err := s.central.Take(ctx, &t); err != nil {
		return 0, err
	}
	got := time.Since(s.start)
	s.left = t.Decisions[0].Remaining
	if s.left < 0 || t.Decisions[1].Remaining < 0 {
		return 0, errors.New("regions: the central store does not say what remains")
	}
	clock := time.Duration(t.At.UnixMicro()) * time.Microsecond
	next := *s.known.Load()
	next.at, next.lo, next.hi = true, clock-got, clock+time.Microsecond-sent
	next.spans[n&3] = span{n, most - t.Decisions[1].Remaining}
	s.known.Store(&next)
	s.loadPast() // records the part even while there are no requests
	if t.Allowed() {
		return parts, nil
	}
	return min(s.left, t.Decisions[1].Remaining), nil
}
