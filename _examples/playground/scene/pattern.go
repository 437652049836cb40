package scene

import (
	"math"
	"time"
)

// A source is a stream of requests, or of messages of the chat, numbered from 0.
type source struct {
	at   func(n int64) int64 // when number n is due, in µs since 1970, or the constant never
	fire func(n int64) error // sends number n
	n    int64               // the number to send next
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
		return &source{at: at, fire: func(int64) error { return s.hit(user, 0) }}
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

// interval returns the time between two requests at the rate of the scene, in µs.
func (s *Scene) interval() int64 { return int64(float64(second) / s.set.Rate) }
