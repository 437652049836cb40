package algorithms

import "github.com/seed83679106/weir"

// A mixed state was written under a longer or a shorter period than that of the limit that
// now reads it: by the limit of another tier, or by the same limit before a change. Until of
// the state shows that. The state of an anchored window is mixed while a longer window
// lasts. The state of a sliding window is mixed if its counters belong to windows of another
// length.
//
// The limit knows when the newest unit of a mixed state was spent, but not when the others
// were. It takes all of them to be spent at that instant, so they count until its own
// period is over or the longest window ends, whichever comes first. A charge stores the sum
// of all units and its own, so nothing is forgotten while the longest window lasts. Each
// limit therefore counts at least what was spent since its last charge, as long as that
// charge counts. It counts too much if units are also spent under a longer period. The
// shorter limit then admits its quota until more than its quota is spent in the longer
// window, and after that one charge in each of its periods.
//
// A window of one period may end together with a window of another period. A sliding
// window then takes the state for its own, and its units count from the later of the
// windows in which they may have been spent. There is an exception if one period is less
// than twice the other: units of the current window may count only by a share, as if they
// were spent in the window before, and units of the window before may not count at all.
// TestSwitchedNear shows what that admits.
type mixed struct {
	kept   int64 // all units that were spent
	period int64 // of the limit that decides
	until  int64 // when the longest window ends
}

// step decides a charge of a mixed state at the instant at = max(now, s.At). The arguments b
// and then are B and Until of the state that a charge leaves if it fits.
func (m mixed) step(s *weir.State, d *weir.Decision, quota, b, then, now, at, cost int64) {
	v := m.view(s, quota, at)
	retry := int64(0)
	switch {
	case cost > quota:
		retry = never
	case cost > 0:
		if v.remaining < cost {
			retry = v.next
		}
		if retry > 0 || at > now {
			break
		}
		m.kept, m.until = min(m.kept+cost, 2*weir.MaxTicks), then // more than any quota
		*s = weir.State{At: at, A: m.kept, B: b, Until: then}
		v = m.view(s, quota, at)
	case cost < 0:
		if m.kept = max(0, m.kept-givenBack(cost)); m.kept == 0 {
			*s, m.until = unspent(0, now, at), at
		} else {
			*s = weir.State{At: s.At, A: m.kept, B: b, Until: m.until} // the units that stay were spent by s.At
		}
		v = m.view(s, quota, at)
	}
	v.decide(d, now, at, retry, cost <= 0 || retry == 0 && at == now)
}

func (m mixed) view(s *weir.State, quota, at int64) view {
	v := view{remaining: quota, reset: m.until - at}
	if end := min(m.until, s.At+m.period); at < end && m.kept > 0 {
		v.remaining, v.next = max(0, quota-m.kept), end-at
	}
	return v
}

// cancelMixed gives back n units of a mixed sliding window that were to be spent at the
// instant at. Units that have left the window are not given back.
func cancelMixed(s weir.State, period, now, at, n int64) weir.State {
	if at > s.At || at <= s.At-period {
		return s
	}
	kept := s.A + s.B - n
	if kept <= 0 {
		return unspent(0, now, max(now, s.At))
	}
	return weir.State{At: s.At, A: kept, Until: max(s.Until, s.At+period)}
}
