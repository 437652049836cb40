package algorithms

import "github.com/seed83679106/weir/quota"

// A state is mixed if the limit that wrote it has another period than the limit that
// reads it: the limit of another tier, or the same limit before a change. The reader
// recognizes a mixed state by its Until. The state of an anchored window is mixed while a
// window of a longer period lasts. The state of a sliding window is mixed if its two
// counters belong to windows of another length.
//
// A mixed state says when its newest unit was spent (At), but not when its other units
// were. The limit therefore counts all units as if they were as new as the newest. They
// count until the period of the limit has passed since At, or until the longest window
// ends (Until), whichever comes first. A charge stores the sum of these units and its
// own, so no unit is forgotten while the longest window lasts. Therefore, as long as the
// last charge of a limit counts, the limit counts at least all units that were spent
// since that charge.
//
// A limit counts too many units if units are also spent under a longer period. Let a
// limit with a short period and a limit with a long period charge one key. The short
// limit admits its quota until the long window has more units than that quota. After
// that, the short limit admits one charge in each of its periods until the long window
// ends.
//
// A window of one period may expire at the same time as a window of another period. The Until of
// their states is then the same, and a sliding window takes the state of the other limit
// for its own. If a unit may have been spent in either of two windows, it then counts in
// the later one. There is an exception if the longer period is less than twice the
// shorter one. A limit may then count only a share of the units of the current window, as
// if they were spent in the previous window, and none of the units of the previous window.
// TestSwitchedNear shows how many units that admits.
type mixed struct {
	kept   int64 // all units of the state
	period int64 // the period of the limit that decides
	until  int64 // when the longest window ends
}

// step decides a charge of a mixed state. The caller has set at = max(now, s.At). If the
// next state has units, nextB is its B. If the charge spends units, nextUntil is its
// Until.
func (m mixed) step(s *quota.State, d *quota.Decision, most, nextB, nextUntil, now, at, cost int64) {
	v := m.view(s, most, at)
	retry := int64(0)
	switch {
	case cost > most:
		retry = never
	case cost > 0:
		if v.remaining < cost {
			retry = v.next
		}
		if retry > 0 || at > now {
			break
		}
		m.kept, m.until = min(m.kept+cost, 2*quota.MaxTicks), nextUntil // the cap is more than any quota
		*s = quota.State{At: at, A: m.kept, B: nextB, Until: nextUntil}
		v = m.view(s, most, at)
	case cost < 0:
		if m.kept = max(0, m.kept-givenBack(cost)); m.kept == 0 {
			*s, m.until = unspent(0, now, at), at
		} else {
			*s = quota.State{At: s.At, A: m.kept, B: nextB, Until: m.until} // no unit that stays is newer than s.At
		}
		v = m.view(s, most, at)
	}
	v.decide(d, now, at, retry, cost <= 0 || retry == 0 && at == now)
}

func (m mixed) view(s *quota.State, most, at int64) view {
	v := view{remaining: most, reset: m.until - at}
	if end := min(m.until, s.At+m.period); at < end && m.kept > 0 {
		v.remaining, v.next = max(0, most-m.kept), end-at
	}
	return v
}

// cancelMixed gives back n units of a mixed sliding window that were to be spent at one
// instant, the parameter at. If these units had left the window by s.At, they stay spent.
func cancelMixed(s quota.State, period, now, at, n int64) quota.State {
	if at > s.At || at <= s.At-period {
		return s
	}
	kept := s.A + s.B - n
	if kept <= 0 {
		return unspent(0, now, max(now, s.At))
	}
	return quota.State{At: s.At, A: kept, Until: max(s.Until, s.At+period)}
}
