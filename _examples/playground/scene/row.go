package scene

import (
	"slices"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A row is one algorithm of a scene, with its counts.
type row struct {
	kind     *kind
	limit    quota.Limit
	last     quota.Transaction // the latest transaction of any user
	admitted []span            // for each user, what passed in the last period
	peak     int64             // the most requests of one user that passed in any period
	passed   int64
	refused  int64
	hits     []hit // not sent yet
}

// A hit is one request and its decision, or several requests of one instant: the instant,
// the user, how many passed, Remaining, RetryAfter, ResetAfter and Wait, 1 if the visitor
// sent the request with the button, and how many were refused. Times are in µs.
type hit [9]int64

// A span has the requests that passed in the last period: instants, how many at each, and
// their sum.
type span struct {
	at, n []int64
	sum   int64
}

func (s *span) add(at, n, period int64) {
	s.at, s.n, s.sum = append(s.at, at), append(s.n, n), s.sum+n
	old := 0
	for ; s.at[old] <= at-period; old++ {
		s.sum -= s.n[old]
	}
	s.at, s.n = s.at[old:], s.n[old:]
}

// resize makes one row for each algorithm of the settings. Rows that the scene already has
// are kept, with their counts.
func (s *Scene) resize() {
	old := s.rows
	s.rows = nil
	for _, name := range s.set.Algorithms {
		k := kindOf(name)
		r := &row{kind: k, admitted: make([]span, len(users))}
		if i := slices.IndexFunc(old, func(r *row) bool { return r.kind == k }); i >= 0 {
			r = old[i]
		}
		s.rows = append(s.rows, r)
	}
	s.recount(func(r *row) bool {
		was := r.limit
		r.limit = r.kind.limitOf(&s.set)
		return r.limit != was
	})
}

// recount sets the counts of the rows for which changed returns true to 0, so that they do
// not mix decisions under different settings.
func (s *Scene) recount(changed func(*row) bool) {
	for _, r := range s.rows {
		if changed(r) {
			r.peak, r.passed, r.refused = 0, 0, 0
		}
	}
}

// lanes returns how many users the pattern has.
func (s *Scene) lanes() int {
	if s.set.Pattern == "spammer" {
		return len(users)
	}
	return 1
}

// hit sends k requests of a user through every algorithm, now. own is 1 if the visitor sent
// them with the button, otherwise 0.
func (s *Scene) hit(user int, k, own int64) error {
	for _, r := range s.rows {
		charge := quota.Charge{Rule: "api", Key: users[user], Limit: r.limit}
		passed, err := send(s.take, &r.last, charge, r.kind.within(&s.set), k)
		if err != nil {
			return err
		}
		r.record(user, passed, k-passed, own, s.set.Period*second)
	}
	s.moved = true
	return nil
}

// send charges k requests of one instant and returns how many passed. last is then the
// latest transaction. If requests may wait, send tries all of them, then half of them, and
// so on.
func send(take func(*quota.Transaction) error, last *quota.Transaction, charge quota.Charge, within time.Duration, k int64) (passed int64, err error) {
	charge.Cost = 1
	if k > 1 && within == 0 {
		*last = quota.Transaction{Charges: []quota.Charge{charge}, Mode: quota.ModeAtMost, Most: k}
		err = take(last)
		return last.Granted, err
	}
	for n := k; k > 0 && n > 0; n = min(n, k) {
		charge.Cost = n
		*last = quota.Transaction{Charges: []quota.Charge{charge}, Within: within}
		if err := take(last); err != nil {
			return passed, err
		}
		if last.Allowed() {
			passed, k = passed+n, k-n
		} else {
			n /= 2
		}
	}
	return passed, nil
}

func (s *Scene) take(t *quota.Transaction) error {
	s.decided++
	return s.store.Take(s.ctx, t)
}

// record keeps the decision in r.last about requests of a user.
func (r *row) record(user int, passed, refused, own, period int64) {
	at, d := r.last.At.UnixMicro(), r.last.Decisions[0]
	if refused > 0 && d.RetryAfter == 0 { // of several, some passed
		d.RetryAfter = d.NextAfter
	}
	r.hits = append(r.hits, hit{at, int64(user), passed, d.Remaining, d.RetryAfter.Microseconds(), d.ResetAfter.Microseconds(), r.last.Wait.Microseconds(), own, refused})
	r.passed += passed
	r.refused += refused
	if passed > 0 {
		r.admitted[user].add(at, passed, period)
		r.peak = max(r.peak, r.admitted[user].sum)
	}
}
