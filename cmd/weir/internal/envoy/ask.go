package envoy

import (
	"errors"
	"strconv"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// maxDescriptors is the largest number of descriptors in a call. Envoy sends a few.
const maxDescriptors = 1000

// An ask is one descriptor of a call, with the limit that applies to it.
type ask struct {
	*limit           // nil if no limit applies, or if the limit is unlimited
	key       []byte // the key of the counter in the store
	hits      uint64
	giveBack  bool
	unlimited bool
	t         quota.Transaction

	used       uint64 // the hits in the window, with those of this ask
	reset      int64  // seconds until the window ends, 1 or more
	remembered bool   // used and reset come from Service.over, so the store was not asked
}

// asks returns the descriptors of a call with the limits that apply, or an error if the call is
// invalid.
func (s *Service) asks(r *ratelimit.RateLimitRequest) ([]ask, error) {
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
		s.noDomains.Add(1)
		s.noDomain.Warn("envoy: unknown domain", "domain", storedkey.Of(r.Domain), "effect", "nothing limits the call", "likely", "no file of limits has the domain that Envoy is configured with")
	}
	asks := make([]ask, len(r.Descriptors))
	replaced := map[string]bool{}
	for i, d := range r.Descriptors {
		if err := s.ask(&asks[i], r, d, domain, replaced); err != nil {
			return nil, err
		}
	}
	for i := range asks {
		if a := &asks[i]; a.limit != nil && a.proto.Name != "" && replaced[a.proto.Name] {
			a.limit = nil
		}
	}
	return asks, nil
}

// ask sets the fields of one ask, for the descriptor d of the call r. domain is the domain of r,
// or nil if no file has it. The names of the limits that this limit replaces are added to the
// map replaced.
func (s *Service) ask(a *ask, r *ratelimit.RateLimitRequest, d *common.RateLimitDescriptor, domain *node, replaced map[string]bool) error {
	if domain == nil {
		return nil
	}
	a.hits, a.giveBack = uint64(max(1, r.HitsAddend)), d.GetIsNegativeHits()
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
		a.limit = &limit{proto: &ratelimit.RateLimitResponse_RateLimit{RequestsPerUnit: o.RequestsPerUnit, Unit: unit}, stats: s.overrides}
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

// find sets a.limit to the limit that the nodes below n have for d, and appends the key of the
// counter of d to a.key. At each level an equal value comes first, then values with asterisks in
// the order of the file, and then the key without a value. A limit applies to d only if d has an
// entry for each level down to the descriptor of that limit in the file, and no further entry.
func (a *ask) find(n *node, d *common.RateLimitDescriptor) {
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
// give the same bytes.
func appendText(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 10)
	return append(append(b, ':'), s...)
}
