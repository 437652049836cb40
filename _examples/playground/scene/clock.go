package scene

import "time"

const (
	// most is the largest number of requests that one call of advance sends.
	// While that many decisions wait to be sent to the page, the clock of the scene stands
	// still.
	most = 1000

	// nap is the longest gap between two frames that a scene in memory makes up for. The
	// rest of a longer gap is skipped.
	nap = 250 * time.Millisecond

	// longest is the largest number of requests that a held button sends after the first.
	longest = 600
)

// catchUp sends the requests that are due by now.
func (s *Scene) catchUp() error {
	until := s.due()
	if s.set.Paused {
		s.moved = s.moved || until > s.now // the clock of Redis goes on
		s.now = until
		return nil
	}
	return s.advance(until)
}

// due returns what the clock of the scene should show by now.
func (s *Scene) due() int64 {
	wall := time.Now()
	gone := min(wall.Sub(s.wall), nap)
	s.wall = wall
	switch {
	case s.set.Redis:
		return wall.UnixMicro() + s.ahead
	case s.set.Paused:
		return s.now
	}
	return s.now + int64(float64(gone.Microseconds())*s.set.Speed)
}

// advance moves the clock of the scene forward to an instant, and sends the requests that
// are due by then.
func (s *Scene) advance(until int64) error {
	if len(s.rows[0].hits) >= most {
		return nil
	}
	s.moved = true
	for range most {
		next, at := s.next()
		if at > until {
			s.tick(max(s.now, until))
			return nil
		}
		k, at := next.together(at)
		s.tick(max(s.now, at))
		next.n += k
		if err := next.fire(next.n-k, k); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scene) tick(now int64) {
	s.now = now
	if s.clock != nil {
		s.clock.now = now
	}
}

// next returns the source that is due first, and when it is due.
func (s *Scene) next() (first *source, at int64) {
	at = never
	for _, src := range append([]*source{s.held}, s.pattern...) {
		if src == nil {
			continue
		}
		if due := src.at(src.n); due < at {
			first, at = src, due
		}
	}
	return first, at
}

// step moves the clock of a scene in memory by a tenth of the period.
func (s *Scene) step() error {
	if s.clock == nil {
		return nil
	}
	return s.advance(s.now + s.set.Period*second/10)
}

// hold sends a request now, and more requests at the rate of the scene until the field held
// is nil again.
func (s *Scene) hold() error {
	start, every := s.now+s.interval(), s.interval()
	s.held = &source{
		at: func(n int64) int64 {
			if n >= longest {
				return never
			}
			return start + n*every
		},
		fire: func(_, k int64) error { return s.hit(you, k, 1) },
	}
	return s.hit(you, 1, 1)
}
