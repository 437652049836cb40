package algorithms

import "github.com/seed83679106/weir/quota"

// A bucket is the algorithm behind GCRA, TokenBucket and LeakyBucket. These three use the
// arithmetic of a meter and differ only in the name under which stores keep their states. The value
// of a bucket is this name.
type bucket string

const (
	gcra        bucket = "gcra"
	tokenBucket bucket = "token-bucket"
)

func (b bucket) Name() string                { return string(b) }
func (b bucket) String() string              { return string(b) }
func (bucket) Validate(l *quota.Limit) error { return meterOf(l).validate(l) }

func (b bucket) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	b.Step(&s, &d, l, now, cost)
	return s, d
}

// Step implements optional.Stepper.
func (bucket) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	meterOf(l).step(s, d, now, cost)
}

// Metered implements optional.Metered.
func (bucket) Metered() {}

// Cancel implements optional.Canceler.
func (bucket) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	return meterOf(l).cancel(s, now, at, n)
}

// Force implements optional.Forcer.
func (bucket) Force(s quota.State, l *quota.Limit, at, cost int64) quota.State {
	return meterOf(l).force(s, at, cost)
}

// Usable and Drains implement lease.Leaser: see lease.go.
func (bucket) Usable(l *quota.Limit, d quota.Decision, at, now, n int64) int64 {
	return meterOf(l).held(d, at, now, n)
}
func (bucket) Drains() bool { return true }
