package scene

import (
	"math"
	"time"
)

// A source is a stream of requests, numbered from 0.
type source struct {
	at   func(n int64) int64    // when number n is due, in µs since 1970, or the constant never
	fire func(n, k int64) error // sends k of them, from number n on, at the same instant
	n    int64                  // the number to send next
	bin  int64                  // how many µs of them are sent together; 0 sends each by itself
}

// together returns how many of the source's requests are due up to bin µs after an instant,
// and the instant at which they are sent: that of the last of them, so that none is sent
// before it is due.
func (src *source) together(at int64) (k, last int64) {
	k, last = 1, at
	if src.bin == 0 {
		return k, last
	}
	for {
		next := src.at(src.n + k)
		if next >= at+src.bin {
			return k, last
		}
		k, last = k+1, next
	}
}

const (
	second = int64(time.Second / time.Microsecond)
	never  = math.MaxInt64
)

// patternNames are the patterns of requests that the page offers. A pattern depends only on
// the settings and on its start.
var patternNames = []string{"none", "steady", "bursts", "boundary", "spammer"}

// The users of a scene. Every pattern except "spammer" has only the first user.
const (
	you = iota
	anna
	spammer
)

var users = []string{"you", "anna", "spammer"}

// patternFrom returns the pattern that the settings name. The argument start is the instant
// at which it begins, in µs since 1970.
func (s *Scene) patternFrom(start int64) []*source {
	quota, period := s.set.Quota, s.set.Period*second
	hit := func(user int, at func(n int64) int64) *source {
		return &source{at: at, fire: func(_, k int64) error { return s.hit(user, k, 0) }, bin: s.bin(at)}
	}
	steady := func(user int, first, every int64) *source {
		return hit(user, func(n int64) int64 { return start + first + n*every })
	}
	switch s.set.Pattern {
	case "steady":
		return []*source{steady(you, 0, s.interval())}
	case "bursts": // twice in each period, three quarters of the quota within 1/20 of the period
		size := max(2, quota*3/4)
		return []*source{hit(you, func(n int64) int64 {
			return start + period/10 + n/size*(period/2) + n%size*(period/20)/size
		})}
	case "boundary": // the whole quota at the end of a window, and again just after it
		first := (start/period + 1) * period
		if first < start+period/20 {
			first += period
		}
		return []*source{hit(you, func(n int64) int64 {
			boundary, i := first+n/(2*quota)*(2*period), n%(2*quota)
			if i < quota {
				return boundary - period/20 + i*(period/25)/quota
			}
			return boundary + period/100 + (i-quota)*(period/25)/quota
		})}
	case "spammer":
		return []*source{
			steady(you, period/7, 2*period/(quota+1)),
			steady(anna, period/3, 3*period/(quota+1)),
			steady(spammer, 0, s.interval()),
		}
	}
	return nil
}

// bin returns how many µs of a stream of requests are sent together. It is 0, unless a period
// would hold more than 2000 marks of single requests.
func (s *Scene) bin(at func(n int64) int64) int64 {
	period := s.set.Period * second
	if at(1)-at(0) < period/2000 {
		return period / 400
	}
	return 0
}

// interval returns the time between two requests at the rate of the scene, in µs.
func (s *Scene) interval() int64 { return int64(float64(second) / s.set.Rate) }
