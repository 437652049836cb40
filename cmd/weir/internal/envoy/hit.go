package envoy

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// maxDescriptors is the largest number of descriptors in a call. Envoy sends a few.
const maxDescriptors = 100

// A hit is one descriptor of a call, together with the limit that applies to it.
type hit struct {
	*limit           // nil if no limit applies, or if the limit is unlimited
	key       []byte // the key of the counter in the store
	hits      uint64
	refund    bool
	unlimited bool
	t         quota.Transaction

	used       uint64 // the hits in the window, including those of this descriptor
	reset      int64  // seconds until the window ends, 1 or more
	never      bool   // an algorithm of Weir can never allow this number of hits
	remembered bool   // used and reset come from Service.over, so the store was not called
	undecided  bool   // the store was busy or cannot work, so the hits exceed the limit
}

// descriptors returns the descriptors of a call with the limits that apply, or an error if the call is
// invalid.
func (s *Service) descriptors(r *ratelimit.RateLimitRequest) ([]hit, error) {
	switch n := len(r.Descriptors); {
	case r.Domain == "":
		return nil, errors.New("the domain is empty")
	case n == 0:
		return nil, errors.New("there are no descriptors")
	case n > maxDescriptors:
		return nil, errors.New("there are more than " + strconv.Itoa(maxDescriptors) + " descriptors")
	}
	domain := s.config.Load().domains[r.Domain]
	if domain == nil {
		s.metrics.noDomain.Inc()
		s.noDomain.Warn("envoy: unknown domain", "domain", storedkey.Of(r.Domain), "effect", "nothing limits the call",
			"likely", "no file of limits has the domain that Envoy is configured with")
	}
	ds := make([]hit, len(r.Descriptors))
	replaced := map[string]bool{}
	for i, d := range r.Descriptors {
		if err := s.describe(&ds[i], r, d, domain, replaced); err != nil {
			return nil, err
		}
	}
	for i := range ds {
		if a := &ds[i]; a.limit != nil && a.proto.Name != "" && replaced[a.proto.Name] {
			a.limit = nil
		}
	}
	return ds, nil
}

// describe sets the fields of the hit a for the descriptor d of the call r. It is given the node
// for r's domain, or nil if no file defines that domain. It adds the names of the limits that the
// limit of d replaces to the map.
func (s *Service) describe(a *hit, r *ratelimit.RateLimitRequest, d *common.RateLimitDescriptor, domain *node,
	replaced map[string]bool) error {
	if domain == nil {
		return nil
	}
	a.hits, a.refund = uint64(max(1, r.HitsAddend)), d.GetIsNegativeHits()
	if h := d.GetHitsAddend(); h != nil {
		a.hits = h.Value // 0 spends nothing
	}
	a.hits = min(a.hits, maxHits)
	a.key = appendText(nil, r.Domain)
	if o := d.GetLimit(); o != nil {
		unit := ratelimit.RateLimitResponse_RateLimit_Unit(o.Unit)
		if periods[unit] == 0 {
			return errors.New("a limit in a descriptor has no unit")
		}
		a.limit = &limit{proto: &ratelimit.RateLimitResponse_RateLimit{RequestsPerUnit: o.RequestsPerUnit, Unit: unit},
			stats: s.overrides}
		for _, e := range d.Entries {
			a.key = appendText(appendText(a.key, e.GetKey()), e.GetValue())
		}
		return nil
	}
	a.find(domain, d)
	if a.limit == nil {
		return nil
	}
	for _, name := range a.replaces {
		replaced[name] = true
	}
	if a.limit.unlimited {
		a.unlimited, a.limit = true, nil
	}
	return nil
}

// find looks for d's limit in the nodes below n. It sets a.limit to this limit, and appends the key
// of d's counter to a.key. At each level, an equal value takes precedence over values with
// asterisks, which are tried in the order of the file, and these take precedence over the key
// without a value. A limit applies to d only if the entries of d match, level by level, the path in
// the file to that limit's descriptor, and d has no further entries.
func (a *hit) find(n *node, d *common.RateLimitDescriptor) {
	for i, e := range d.GetEntries() {
		name := e.GetKey() + "_" + e.GetValue()
		next, value := n.children[name], e.GetValue()
		for j := 0; next == nil && j < len(n.wildcards); j++ {
			if w := &n.wildcards[j]; w.matches(name) {
				next = w.node
				if w.shared != "" {
					value = w.shared
				}
			}
		}
		if next == nil {
			next = n.children[e.GetKey()]
		}
		if next == nil {
			return
		}
		a.key = appendText(appendText(a.key, e.GetKey()), value)
		if i == len(d.Entries)-1 {
			a.limit = next.limit
		}
		n = next
	}
}

// appendText appends the length of s, a colon and s, so that different lists of texts never
// produce the same bytes.
func appendText(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 10)
	return append(append(b, ':'), s...)
}

const (
	// ceiling is the quota of the windows in which hits are counted.
	ceiling = quota.MaxTicks

	// maxHits is the largest number of hits that one descriptor can add. This number exceeds every
	// limit, because requests_per_unit is a uint32.
	maxHits = 1 << 32
)

// count counts the hits of every descriptor that has a limit, even if other descriptors exceed
// their limits. It returns the errors of the store, joined.
func (s *Service) count(ctx context.Context, ds []hit) error {
	var ts []*quota.Transaction
	before := time.Now()
	for i := range ds {
		a := &ds[i]
		if a.limit == nil || a.own == nil && s.over.recall(a, before) {
			continue
		}
		cost := int64(a.hits)
		if a.refund {
			cost = -cost
		}
		a.t.Charges = []quota.Charge{{Rule: "envoy", Key: string(a.key), Cost: cost,
			Limit: algorithms.FixedWindow(ceiling, periods[a.proto.Unit])}}
		if a.own != nil {
			a.t.Charges[0].Limit = *a.own
		}
		ts = append(ts, &a.t)
	}
	if err := s.take(ctx, ts); err != nil {
		return err
	}
	for i := range ds {
		switch a := &ds[i]; {
		case a.limit == nil || a.remembered:
		case a.own != nil:
			a.decidedByOwn()
		default:
			a.decided()
			s.over.keep(a, before)
		}
	}
	return nil
}

// take passes every transaction to the store, and returns the joined errors.
func (s *Service) take(ctx context.Context, ts []*quota.Transaction) error {
	if len(ts) == 1 {
		return s.store.Take(ctx, ts[0])
	}
	if b, ok := s.store.(optional.Batcher); ok && len(ts) > 0 {
		return errors.Join(b.TakeEach(ctx, ts)...)
	}
	// A store can send concurrent calls in one round trip. There are at most maxDescriptors calls.
	errs := make([]error, len(ts))
	var wg sync.WaitGroup
	for i, t := range ts {
		wg.Go(func() {
			_, errs[i] = safe.Call("envoy: the store panicked", func() error { return s.store.Take(ctx, t) })
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// decided sets the fields of the descriptor from the decision of the store.
func (a *hit) decided() {
	a.used = ceiling // if the counter is full
	if d := &a.t.Decisions[0]; d.Allowed {
		a.used = uint64(ceiling - d.Remaining)
	}
	period := int64(periods[a.proto.Unit] / time.Second)
	a.reset = period - a.t.At.Unix()%period
}
