package envoy

import (
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const retryAfter = "Retry-After"

func number(name string, n int64) *core.HeaderValue {
	return &core.HeaderValue{Key: name, Value: strconv.FormatInt(n, 10)}
}

// tightest returns the status of a descriptor that is over its limit, or else the status with the
// smallest LimitRemaining. It returns nil if no descriptor has a limit.
func tightest(statuses []*ratelimit.RateLimitResponse_DescriptorStatus) (least *ratelimit.RateLimitResponse_DescriptorStatus) {
	for _, st := range statuses {
		if st.CurrentLimit != nil && (least == nil || st.Code > least.Code || st.Code == least.Code && st.LimitRemaining < least.LimitRemaining) {
			least = st
		}
	}
	return least
}

// HeaderNames are the names of the header fields that tell clients the quota of a limit, what remains
// of it, and the seconds until its window ends.
var HeaderNames = [3]string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}

// headers returns the header fields that tell a client the state of the limit in st, or none if
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
