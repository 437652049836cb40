package envoy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

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
func ownLimit(metadata *structpb.Struct, p *ratelimit.RateLimitResponse_RateLimit) (*quota.Limit, error) {
	chosen := metadata.GetFields()[ownField]
	if chosen == nil {
		return nil, nil
	}
	if chosen.GetStructValue() == nil {
		return nil, errors.New("want a mapping with algorithm, burst or timezone")
	}
	algorithm, zone, burst := "", "", 0.0
	for name, value := range chosen.GetStructValue().Fields {
		switch name {
		case "algorithm":
			algorithm = fmt.Sprint(value.AsInterface())
		case "timezone":
			zone = fmt.Sprint(value.AsInterface())
		case "burst":
			if burst = value.GetNumberValue(); !wholeNumber(burst) {
				return nil, fmt.Errorf("burst is %v; want 1 to %d", value.AsInterface(), uint32(math.MaxUint32))
			}
		default:
			return nil, fmt.Errorf("unknown field %s; known are algorithm, burst and timezone", name)
		}
	}
	l := quota.Limit{Quota: int64(p.RequestsPerUnit), Period: periods[p.Unit], Algorithm: algorithms.ByName(algorithm)}
	switch {
	case algorithm == "calendar", algorithm == "" && zone != "":
		location, err := time.LoadLocation(zone) // without a zone, UTC
		unit, ok := calendarUnits[p.Unit]
		if !ok || err != nil {
			return nil, errors.Join(err,
				fmt.Errorf("a calendar needs a day, week or month, and perhaps a zone; got %v, %v", p.Unit, zone))
		}
		l = algorithms.Calendar(l.Quota, unit, location)
	case zone != "":
		return nil, errors.New("only the algorithm calendar has a timezone")
	case l.Algorithm == nil, l.InFlight():
		known := slices.DeleteFunc(algorithms.Names(), func(name string) bool { return name == "in-flight" })
		return nil, fmt.Errorf("algorithm is %v; want calendar, %s", algorithm, strings.Join(known, ", "))
	}
	l.Burst = int64(burst)
	return &l, l.Validate()
}

func wholeNumber(n float64) bool { return n >= 1 && n <= math.MaxUint32 && n == math.Trunc(n) }

// decidedByOwn sets the fields of the descriptor from the decision of its own algorithm. If the
// algorithm refuses the hits, they exceed the limit.
func (h *hit) decidedByOwn() {
	d, units := &h.t.Decisions[0], uint64(h.proto.RequestsPerUnit)
	wait := d.RetryAfter
	if d.Allowed {
		h.used = units - min(units, uint64(d.Remaining))
		wait = h.own.FullAfter(d)
	} else {
		h.used, h.never = units+max(1, h.hits), wait == quota.Never
	}
	if wait == quota.Never {
		wait = h.own.Period
	}
	h.reset = max(1, period.Seconds(wait))
}
