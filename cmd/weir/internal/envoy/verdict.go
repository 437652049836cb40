package envoy

import ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

// A verdict is what the descriptors of a call decide together: the call is over its limit if a
// descriptor is over a limit without quota_mode, or if there are descriptors with quota_mode and
// all of them are over their limits.
type verdict struct {
	over  bool  // a descriptor without quota_mode is over its limit
	wait  int64 // seconds until the windows of all these have ended
	never bool  // one of these has more hits than its limit allows in a window

	quotas, overQuotas int   // the descriptors with quota_mode, and those of them that are over their limits
	quotaWait          int64 // seconds until the first window of these ends; 0 if that helps none
}

// add adds an ask that has the status st.
func (v *verdict) add(a *ask, st *ratelimit.RateLimitResponse_DescriptorStatus, quotaMode bool) {
	if quotaMode {
		v.quotas++
	}
	if st.Code != ratelimit.RateLimitResponse_OVER_LIMIT {
		return
	}
	reset, never := st.DurationUntilReset.GetSeconds(), a.hits > uint64(st.CurrentLimit.RequestsPerUnit)
	if !quotaMode {
		v.over, v.wait, v.never = true, max(v.wait, reset), v.never || never
		return
	}
	v.overQuotas++
	if !never && (v.quotaWait == 0 || reset < v.quotaWait) {
		v.quotaWait = reset
	}
}

// outOfQuota reports whether there are descriptors with quota_mode and all are over their limits.
func (v *verdict) outOfQuota() bool { return v.quotas > 0 && v.quotas == v.overQuotas }

// refused reports whether the call is over its limit.
func (v *verdict) refused() bool { return v.over || v.outOfQuota() }

// retryAfter returns the seconds after which a refused call may pass, or 0 if it never passes.
func (v *verdict) retryAfter() int64 {
	if v.never || v.outOfQuota() && v.quotaWait == 0 {
		return 0
	}
	if v.outOfQuota() {
		return max(v.wait, v.quotaWait)
	}
	return v.wait
}
