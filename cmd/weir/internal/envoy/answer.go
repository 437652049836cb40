package envoy

import (
	"math"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// status returns the answer to an ask. It adds the hits of the ask to the stats of the limit,
// unless the ask gives hits back.
func (a *ask) status() *ratelimit.RateLimitResponse_DescriptorStatus {
	switch {
	case a.unlimited:
		return &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK, LimitRemaining: math.MaxUint32}
	case a.limit == nil:
		return &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK}
	}
	after, units, period := a.after(), uint64(a.proto.RequestsPerUnit), int64(periods[a.proto.Unit]/time.Second)
	over := after > units
	if !a.giveBack {
		over = a.count(a.hits, after, units, a.shadow)
	}
	st := &ratelimit.RateLimitResponse_DescriptorStatus{
		Code: ratelimit.RateLimitResponse_OK, CurrentLimit: a.proto,
		DurationUntilReset: &durationpb.Duration{Seconds: period - a.t.At.Unix()%period},
	}
	if !over {
		st.LimitRemaining = uint32(units - after)
	} else if !a.shadow {
		st.Code = ratelimit.RateLimitResponse_OVER_LIMIT
	}
	return st
}

// answer returns the answer to a call. Its overall code is OVER_LIMIT if a descriptor is over its
// limit. If all limits of the call have quota_mode, the code is OVER_LIMIT only if all descriptors
// are over their limits. With Options.Shadow the code is always OK.
func (s *Service) answer(r *ratelimit.RateLimitRequest, asks []ask) *ratelimit.RateLimitResponse {
	resp := &ratelimit.RateLimitResponse{OverallCode: ratelimit.RateLimitResponse_OK}
	var over []int // the indexes of descriptors that are over their limit
	for i := range asks {
		st := asks[i].status()
		resp.Statuses = append(resp.Statuses, st)
		if st.Code == ratelimit.RateLimitResponse_OVER_LIMIT {
			over = append(over, i)
		}
	}
	someQuota, units := quotaMode(asks)
	if refused := len(over) > 0 && (!units || len(over) == len(asks)); refused && !s.o.Shadow {
		resp.OverallCode = ratelimit.RateLimitResponse_OVER_LIMIT
	}
	if s.o.Headers {
		resp.ResponseHeadersToAdd = headers(tightest(resp.Statuses))
	}
	if resp.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT {
		if wait := wait(asks, resp.Statuses, over, units); wait > 0 {
			resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, number(retryAfter, wait))
		}
	}
	if s.o.Metadata {
		if !units {
			over = nil
		}
		resp.DynamicMetadata = metadata(r, over, someQuota)
	}
	return resp
}

// refusal returns the answer to a call that could not be decided: each descriptor with a limit is
// over its limit, unless that limit is in shadow mode. If again is true, the client may try again in
// a second.
func (s *Service) refusal(asks []ask, again bool) *ratelimit.RateLimitResponse {
	resp := &ratelimit.RateLimitResponse{OverallCode: ratelimit.RateLimitResponse_OK}
	for i := range asks {
		st := &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK}
		if a := &asks[i]; a.limit != nil {
			st.CurrentLimit = a.proto
			if !a.shadow {
				st.Code = ratelimit.RateLimitResponse_OVER_LIMIT
				resp.OverallCode = st.Code
			}
		}
		resp.Statuses = append(resp.Statuses, st)
	}
	if s.o.Shadow {
		resp.OverallCode = ratelimit.RateLimitResponse_OK
	}
	if again && resp.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT {
		resp.ResponseHeadersToAdd = []*core.HeaderValue{number(retryAfter, 1)}
	}
	return resp
}

// quotaMode reports whether some limit of the call has quota_mode, and whether all limits of the
// call have quota_mode.
func quotaMode(asks []ask) (some, all bool) {
	all = true
	for i := range asks {
		if a := &asks[i]; a.limit != nil {
			some = some || a.quota
			all = all && a.quota
		}
	}
	return some, some && all
}

// wait returns the seconds after which a refused call may pass. The indexes of the descriptors over
// their limit are in over. All their windows must have ended or, in quota mode, one of them. wait
// returns 0 if the call never passes, because it has more hits than a limit.
func wait(asks []ask, statuses []*ratelimit.RateLimitResponse_DescriptorStatus, over []int, units bool) (seconds int64) {
	for _, i := range over {
		reset := statuses[i].DurationUntilReset.Seconds
		switch never := asks[i].hits > uint64(statuses[i].CurrentLimit.RequestsPerUnit); {
		case never && !units:
			return 0
		case never:
		case units && seconds > 0:
			seconds = min(seconds, reset)
		default:
			seconds = max(seconds, reset)
		}
	}
	return seconds
}
