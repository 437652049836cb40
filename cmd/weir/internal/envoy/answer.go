package envoy

import (
	"math"
	"slices"
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// status returns the answer to a descriptor. The hits of the descriptor are added to the stats of
// the limit, unless the descriptor refunds hits or the store has not counted them. Hits above the
// given fraction of the limit count as near the limit.
func (h *hit) status(near float32) *ratelimit.RateLimitResponse_DescriptorStatus {
	switch {
	case h.unlimited:
		return &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK,
			LimitRemaining: math.MaxUint32}
	case h.limit == nil:
		return &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK}
	}
	units := uint64(h.proto.RequestsPerUnit)
	over := h.used > units || h.undecided
	if !h.refund && !h.undecided {
		h.count(h.hits, h.used, units, near, h.shadow)
	}
	if h.remembered {
		h.local.Add(float64(h.hits))
	}
	st := &ratelimit.RateLimitResponse_DescriptorStatus{
		Code: ratelimit.RateLimitResponse_OK, CurrentLimit: h.proto,
		DurationUntilReset: &durationpb.Duration{Seconds: h.reset},
	}
	if !over {
		st.LimitRemaining = uint32(units - h.used)
	} else if !h.shadow {
		st.Code = ratelimit.RateLimitResponse_OVER_LIMIT
	}
	return st
}

// answer returns the answer to a call. The overall code is OVER_LIMIT if a descriptor exceeds a
// limit that has no quota_mode, or if all descriptors that have quota_mode exceed their limits.
// With Options.Quota all descriptors have quota_mode. With Options.Shadow the code is always OK.
func (s *Service) answer(r *ratelimit.RateLimitRequest, ds []hit) *ratelimit.RateLimitResponse {
	resp := &ratelimit.RateLimitResponse{OverallCode: ratelimit.RateLimitResponse_OK}
	for i := range ds {
		resp.Statuses = append(resp.Statuses, ds[i].status(float32(s.o.Near)))
	}
	refused, wait := s.refused(ds, resp.Statuses)
	if refused && s.o.Shadow {
		s.metrics.globalShadow.Inc()
	} else if refused {
		resp.OverallCode = ratelimit.RateLimitResponse_OVER_LIMIT
	}
	if s.o.Headers {
		resp.ResponseHeadersToAdd = headers(s.o.HeaderNames, tightest(resp.Statuses))
	}
	if wait > 0 && resp.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, number(retryAfter, wait))
	}
	if s.o.Metadata {
		resp.DynamicMetadata = metadata(r, ds, resp.Statuses)
	}
	return resp
}

// refused reports whether a call exceeds its limit. A call does so if a descriptor exceeds a limit
// that has no quota_mode, or if there are descriptors with quota_mode and all of them exceed their
// limits. The second result is the number of seconds after which the call may be allowed, or 0 if
// the call can never be allowed.
func (s *Service) refused(ds []hit, statuses []*ratelimit.RateLimitResponse_DescriptorStatus) (refused bool, wait int64) {
	const never = math.MaxInt64
	quotas := 0
	var waits, quotaWaits []int64 // of the descriptors that exceed their limits
	for i, st := range statuses {
		h := &ds[i]
		quotaMode := s.o.Quota || h.limit != nil && h.quota
		if quotaMode {
			quotas++
		}
		if st.Code != ratelimit.RateLimitResponse_OVER_LIMIT {
			continue
		}
		wait := st.DurationUntilReset.GetSeconds()
		if h.never || h.own == nil && h.hits > uint64(st.CurrentLimit.RequestsPerUnit) {
			wait = never
		}
		if quotaMode {
			quotaWaits = append(quotaWaits, wait)
		} else {
			waits = append(waits, wait)
		}
	}
	if quotas > 0 && quotas == len(quotaWaits) {
		waits = append(waits, slices.Min(quotaWaits)) // one of them suffices
	}
	if len(waits) == 0 {
		return false, 0
	}
	if wait = slices.Max(waits); wait == never {
		wait = 0
	}
	return true, wait
}

const retryAfter = "Retry-After"

func number(name string, n int64) *core.HeaderValue {
	return &core.HeaderValue{Key: name, Value: strconv.FormatInt(n, 10)}
}

// tightest returns the status of a descriptor that exceeds its limit or, if there is none, the
// status with the smallest LimitRemaining. It returns nil if no descriptor has a limit.
func tightest(statuses []*ratelimit.RateLimitResponse_DescriptorStatus) (least *ratelimit.RateLimitResponse_DescriptorStatus) {
	for _, st := range statuses {
		if st.CurrentLimit != nil && (least == nil || st.Code > least.Code || st.Code == least.Code &&
			st.LimitRemaining < least.LimitRemaining) {
			least = st
		}
	}
	return least
}

// HeaderNames holds the names of three header fields, which show clients the quota of a limit, the
// remaining hits, and the seconds until the window ends.
var HeaderNames = [3]string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}

// headers returns the header fields that show a client the state of the limit in st, or none if
// st is nil.
func headers(names [3]string, st *ratelimit.RateLimitResponse_DescriptorStatus) []*core.HeaderValue {
	if st == nil {
		return nil
	}
	return []*core.HeaderValue{
		number(names[0], int64(st.CurrentLimit.RequestsPerUnit)),
		number(names[1], int64(st.LimitRemaining)),
		number(names[2], st.DurationUntilReset.Seconds),
	}
}
