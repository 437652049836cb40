package regions

import (
	"slices"
	"time"
)

// A regionView contains what a region knows about the clock of the central store and about the
// region's own claims. It is immutable.
type regionView struct {
	at     bool          // bounds on the central store's clock are known
	lo, hi time.Duration // bounds on the difference between the central store's clock and the time since start
	spans  [4]span
}

// A span records how many parts the region has claimed for interval n. All intervals have the
// length Options.Every.
type span struct{ n, claimed int64 }

func (k *regionView) claimed(n int64) int64 {
	if s := k.spans[n&3]; s.n == n {
		return s.claimed
	}
	return 0
}

// minParts returns the smallest number of parts that the region has claimed for any of the spans
// from first to last.
func (k *regionView) minParts(first, last int64) int64 {
	claimed := k.claimed(first)
	for n := first + 1; n <= last && claimed > 0; n++ {
		claimed = min(claimed, k.claimed(n))
	}
	return claimed
}

// A present holds a past and the data from which the past was made. It is immutable.
type present struct {
	known       *regionView
	first, last int64 // the spans that may be current by the central store's clock: see between
	past        past
}

// mostSteps is the maximum number of steps in a past. If parts change randomly, a past has fewer
// steps.
const mostSteps = 16

// A holding records that the region has had at least a certain part since a certain time.
type holding struct {
	at   time.Duration // since start
	part int64
}

// currentSpans returns the first and the last span that may be current, by the central store's
// clock, between now and a sixteenth of a span later. By that time, a call to the local store that
// begins now has ended.
func (s *Store) currentSpans(k *regionView, now time.Duration) (first, last int64) {
	return int64((now + k.lo) / s.o.Every), int64((now + k.hi + s.o.Every/16) / s.o.Every)
}

// loadPast returns the region's past. If the region has claimed parts, or a span has begun, it
// makes a new one.
func (s *Store) loadPast() *past {
	k, p := s.known.Load(), s.present.Load()
	if p != nil && p.known == k {
		if first, last := s.currentSpans(k, time.Since(s.start)); !k.at || p.first == first && p.last == last {
			return &p.past
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, p = s.known.Load(), s.present.Load()
	now, next := time.Since(s.start), &present{known: k}
	if k.at {
		next.first, next.last = s.currentSpans(k, now)
		if p != nil && p.known.at { // include the spans since the last past was made
			s.note(now, s.kept+k.minParts(min(p.first, next.first), next.last))
		}
		s.note(now, s.kept+k.minParts(next.first, next.last))
	} else {
		s.note(now, s.kept)
	}
	for end := now; len(next.past) < len(s.held); {
		h := s.held[len(s.held)-1-len(next.past)]
		next.past = append(next.past, step{h.part, int64((end - h.at) / time.Microsecond)})
		end = h.at
	}
	s.present.Store(next)
	return &next.past
}

// note records that the region has the given part from now on. It removes all larger parts from
// s.held.
func (s *Store) note(now time.Duration, part int64) {
	n := len(s.held)
	for n > 0 && s.held[n-1].part >= part {
		n--
		now = s.held[n].at
	}
	s.held = append(s.held[:n], holding{now, part})
	if len(s.held) > mostSteps {
		s.held = slices.Delete(s.held, 1, 2) // during the removed step, the smaller part of the step before it now counts
	}
}
