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
		if h := &ds[i]; h.limit != nil && h.proto.Name != "" && replaced[h.proto.Name] {
			h.limit = nil
		}
	}
	return ds, nil
}

// describe sets the fields of the hit h for the descriptor d of the call r. It is given the node
// for r's domain, or nil if no file defines that domain. It adds the names of the limits that the
// limit of d replaces to the map.
func (s *Service) describe(h *hit, r *ratelimit.RateLimitRequest, d *common.RateLimitDescriptor, domain *node,
	replaced map[string]bool) error {
	if domain == nil {
		return nil
	}
	h.hits, h.refund = uint64(max(1, r.HitsAddend)), d.GetIsNegativeHits()
	if addend := d.GetHitsAddend(); addend != nil {
		h.hits = addend.Value // 0 spends nothing
	}
	h.hits = min(h.hits, maxHits)
	h.key = appendText(nil, r.Domain)
	if o := d.GetLimit(); o != nil {
		unit := ratelimit.RateLimitResponse_RateLimit_Unit(o.Unit)
		if periods[unit] == 0 {
			return errors.New("a limit in a descriptor has no unit")
		}
		h.limit = &limit{proto: &ratelimit.RateLimitResponse_RateLimit{RequestsPerUnit: o.RequestsPerUnit, Unit: unit},
			stats: s.overrides}
		for _, e := range d.Entries {
			h.key = appendText(appendText(h.key, e.GetKey()), e.GetValue())
		}
		return nil
	}
	h.find(domain, d)
	if h.limit == nil {
		return nil
	}
	for _, name := range h.replaces {
		replaced[name] = true
	}
	if h.limit.unlimited {
		h.unlimited, h.limit = true, nil
	}
	return nil
}

// find looks for d's limit in the nodes below n. It sets h.limit to this limit, and appends the key
// of d's counter to h.key. At each level, an equal value takes precedence over values with
// asterisks, which are tried in the order of the file, and these take precedence over the key
// without a value. A limit applies to d only if the entries of d match, level by level, the path in
// the file to that limit's descriptor, and d has no further entries.
func (h *hit) find(n *node, d *common.RateLimitDescriptor) {
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
		h.key = appendText(appendText(h.key, e.GetKey()), value)
		if i == len(d.Entries)-1 {
			h.limit = next.limit
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
		h := &ds[i]
		if h.limit == nil || h.own == nil && s.over.recall(h, before) {
			continue
		}
		cost := int64(h.hits)
		if h.refund {
			cost = -cost
		}
		h.t.Charges = []quota.Charge{{Rule: "envoy", Key: string(h.key), Cost: cost,
			Limit: algorithms.FixedWindow(ceiling, periods[h.proto.Unit])}}
		if h.own != nil {
			h.t.Charges[0].Limit = *h.own
		}
		ts = append(ts, &h.t)
	}
	if err := s.take(ctx, ts); err != nil {
		return err
	}
	for i := range ds {
		switch h := &ds[i]; {
		case h.limit == nil || h.remembered:
		case h.own != nil:
			h.decidedByOwn()
		default:
			h.decided()
			s.over.keep(h, before)
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
func (h *hit) decided() {
	h.used = ceiling // if the counter is full
	if d := &h.t.Decisions[0]; d.Allowed {
		h.used = uint64(ceiling - d.Remaining)
	}
	period := int64(periods[h.proto.Unit] / time.Second)
	h.reset = period - h.t.At.Unix()%period
}
