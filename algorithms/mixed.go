package algorithms

import "github.com/seed83679106/weir"

// A mixed state was written under other periods than that of the limit that judges
// it: those of other tiers, or from before a change. Until of the state tells. An
// anchored window is mixed as long as a longer one lasts. A sliding window is mixed
// if its counters are not those of this period's windows.
//
// The limit does not know when the units of such a state were spent, but for the
// newest. It takes all of them to be spent then: they count until its own period is
// over, or the window that holds them. Nothing is forgotten while the longest window
// lasts: what is stored is all of the units and the charge. So each limit counts at
// least what was spent since its last charge, as long as that charge lasts, and more
// than there was if others spend under a longer period: a shorter limit then admits
// its quota as long as the longer one has spent no more than that in all, and else
// one charge in each of its periods.
//
// The windows of one period can end with those of another. A sliding window then
// takes the state for its own. Its units count from the later of the windows that
// they may be in, but those of the window before: if one period is less than twice
// the other they may have been spent in this one and count by a share, or in the
// window before and not count at all. TestSwitchedNear shows what that admits.
type mixed struct {
	kept   int64 // all that is spent
	period int64 // of the limit that judges
	until  int64 // when the longest window ends
}

// step spends in a mixed state at the instant at = max(now, s.At). After a charge the
// state has b, and lasts until then.
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
			*s = weir.State{At: s.At, A: m.kept, B: b, Until: m.until} // not newer for it
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

// cancelMixed gives back n units of a sliding window that were to be spent at the
// instant at, unless they have left it.
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
