package envoy

import (
	"math"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// status returns the answer to an ask. It adds the hits of the ask to the stats of the limit,
// unless the ask gives hits back. Hits above the fraction near of the limit are near it.
func (a *ask) status(near float32) *ratelimit.RateLimitResponse_DescriptorStatus {
	switch {
	case a.unlimited:
		return &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK, LimitRemaining: math.MaxUint32}
	case a.limit == nil:
		return &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK}
	}
	units := uint64(a.proto.RequestsPerUnit)
	over := a.used > units
	if !a.giveBack {
		a.count(a.hits, a.used, units, near, a.shadow)
	}
	if a.remembered {
		a.local.Add(a.hits)
	}
	st := &ratelimit.RateLimitResponse_DescriptorStatus{
		Code: ratelimit.RateLimitResponse_OK, CurrentLimit: a.proto, DurationUntilReset: &durationpb.Duration{Seconds: a.reset},
	}
	if !over {
		st.LimitRemaining = uint32(units - a.used)
	} else if !a.shadow {
		st.Code = ratelimit.RateLimitResponse_OVER_LIMIT
	}
	return st
}

// answer returns the answer to a call. Its overall code is OVER_LIMIT if a descriptor is over a
// limit that has no quota_mode, or if all descriptors that have quota_mode are over their limits. With
// Options.Quota all descriptors have quota_mode. With Options.Shadow the code is always OK.
func (s *Service) answer(r *ratelimit.RateLimitRequest, asks []ask) *ratelimit.RateLimitResponse {
	resp := &ratelimit.RateLimitResponse{OverallCode: ratelimit.RateLimitResponse_OK}
	var v verdict
	for i := range asks {
		a := &asks[i]
		st := a.status(s.near)
		resp.Statuses = append(resp.Statuses, st)
		v.add(a, st, s.o.Quota || a.limit != nil && a.quota)
	}
	refused := v.refused()
	if refused && s.o.Shadow {
		s.shadowed.Add(1)
	} else if refused {
		resp.OverallCode = ratelimit.RateLimitResponse_OVER_LIMIT
	}
	if s.o.Headers {
		resp.ResponseHeadersToAdd = headers(s.names, tightest(resp.Statuses))
	}
	if wait := v.retryAfter(); wait > 0 && resp.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, number(retryAfter, wait))
	}
	if s.o.Metadata {
		resp.DynamicMetadata = metadata(r, asks, resp.Statuses)
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
