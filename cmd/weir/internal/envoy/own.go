package envoy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/quota"
)

// ownField is the field of a descriptor's metadata that chooses an algorithm of Weir:
//
//	metadata: {weir: {algorithm: calendar, timezone: Europe/Berlin}}
//
// The fields are algorithm, burst and timezone. A hit that such a limit refuses is not counted.
const ownField = "weir"

// calendarUnits are the units of calendar windows.
var calendarUnits = map[ratelimit.RateLimitResponse_RateLimit_Unit]algorithms.Unit{
	ratelimit.RateLimitResponse_RateLimit_DAY: algorithms.Day, ratelimit.RateLimitResponse_RateLimit_WEEK: algorithms.Week,
	ratelimit.RateLimitResponse_RateLimit_MONTH: algorithms.Month,
}

// ownLimit returns the limit that the metadata of a descriptor chooses, or nil if it chooses none.
func ownLimit(metadata map[string]any, p *ratelimit.RateLimitResponse_RateLimit) (*quota.Limit, error) {
	chosen, ok := metadata[ownField]
	if !ok {
		return nil, nil
	}
	fields, ok := chosen.(map[string]any)
	if !ok {
		return nil, errors.New("want a mapping with algorithm, burst or timezone")
	}
	for name := range fields {
		if !slices.Contains([]string{"algorithm", "burst", "timezone"}, name) {
			return nil, fmt.Errorf("unknown field %s; known are algorithm, burst and timezone", name)
		}
	}
	l, err := algorithmOf(fields, p)
	if err != nil {
		return nil, err
	}
	if burst, ok := fields["burst"]; ok {
		if l.Burst, err = wholeNumber(burst); err != nil {
			return nil, err
		}
	}
	return &l, l.Validate()
}

// algorithmOf returns a limit of p with the algorithm and the zone that the fields name.
func algorithmOf(fields map[string]any, p *ratelimit.RateLimitResponse_RateLimit) (l quota.Limit, err error) {
	zone, zoned := fields["timezone"]
	name, named := fields["algorithm"]
	if zoned && !named {
		name = "calendar"
	}
	l = quota.Limit{Quota: int64(p.RequestsPerUnit), Period: periods[p.Unit]}
	switch text, _ := name.(string); {
	case text == "calendar":
		location := time.UTC
		if zoned {
			location, err = time.LoadLocation(fmt.Sprint(zone))
		}
		unit, ok := calendarUnits[p.Unit]
		if !ok || err != nil {
			return l, errors.Join(err,
				fmt.Errorf("a calendar needs a day, week or month, and perhaps a zone; got %v, %v", p.Unit, zone))
		}
		return algorithms.Calendar(l.Quota, unit, location), nil
	case zoned:
		return l, errors.New("only the algorithm calendar has a timezone")
	default:
		l.Algorithm = algorithms.ByName(text)
		if l.Algorithm == nil || l.InFlight() {
			known := slices.DeleteFunc(algorithms.Names(), func(name string) bool { return name == "in-flight" })
			return l, fmt.Errorf("algorithm is %v; want calendar, %s", name, strings.Join(known, ", "))
		}
	}
	return l, nil
}

// wholeNumber returns a number from a YAML file or from a message.
func wholeNumber(v any) (int64, error) {
	switch n := v.(type) {
	case uint64:
		if n <= math.MaxUint32 {
			return int64(n), nil
		}
	case float64:
		if n >= 1 && n <= math.MaxUint32 && n == math.Trunc(n) {
			return int64(n), nil
		}
	}
	return 0, fmt.Errorf("burst is %v; want 1 to %d", v, uint32(math.MaxUint32))
}

// decidedByOwn sets the fields of the descriptor from the decision of its own algorithm. If the
// algorithm refuses the hits, they exceed the limit.
func (a *hit) decidedByOwn() {
	d, units := &a.t.Decisions[0], uint64(a.proto.RequestsPerUnit)
	wait := d.RetryAfter
	if d.Allowed {
		a.used = units - min(units, uint64(d.Remaining))
		wait = a.own.FullAfter(d)
	} else {
		a.used, a.never = units+max(1, a.hits), wait == quota.Never
	}
	if wait == quota.Never {
		wait = a.own.Period
	}
	a.reset = max(1, period.Seconds(wait))
}
