package models_test

import "testing"

// A publishedState is a shard of memstore with two keys of one unit each, a lock, and the copy
// of a state that refuses without the lock. A unit is free again two ticks after it was spent.
type publishedState struct {
	now    int8
	until  [2]int8 // when the unit of each key is free
	copied copied
	count  int8 // refusals under the lock since another key refused, or the state changed
	last   int8 // the key that refused last
	locked bool
	calls  [3]publishedCall
	wrong  bool
}

type copied struct {
	is    bool
	key   int8
	until int8
}

type publishedCall struct {
	at    publishedStep
	key   int8
	now   int8 // the time that it has read
	until int8 // of the state that it is about to publish
}

type publishedStep int8

const (
	called   publishedStep = iota // it has not begun
	timed                         // it has read the time, and looks for a copy
	waiting                       // it waits for the lock
	locking                       // it has the lock, and decides
	changing                      // it has removed the copy
	unlocked                      // it has released the lock before it publishes
	returned
)

const publishAfter = 2

// TestPublished: a copy refuses only what the state would refuse. The third call frees the
// unit of the first key instead of spending it, once; only the first call has both keys.
func TestPublished(t *testing.T) {
	holds(t, 5000, func(fault string) model[publishedState] {
		return model[publishedState]{
			start: publishedState{now: 1},
			next: func(s publishedState, then func(string, publishedState)) {
				if s.now < 3 {
					after := s
					after.now++
					then("time passes", after)
				}
				for c := range s.calls {
					publishedSteps(s, c, fault, then)
				}
			},
			invalid: func(s publishedState) string {
				if s.wrong {
					return "a copy refused what the state would admit"
				}
				return ""
			},
		}
	}, "changes the state and keeps the copy", "publishes after it has released the lock",
		"refuses by the time of the copy", "does not compare the keys")
}

func publishedSteps(s publishedState, c int, fault string, then func(string, publishedState)) {
	step := func(event string, change func(s *publishedState, me *publishedCall)) {
		after := s
		change(&after, &after.calls[c])
		then(name(c, "%s", event), after)
	}
	frees := c == len(s.calls)-1
	switch me := s.calls[c]; me.at {
	case called:
		for key := range int8(2) {
			if key == 0 || c == 0 {
				step("reads the time", func(s *publishedState, me *publishedCall) { me.at, me.key, me.now = timed, key, s.now })
			}
		}
	case timed:
		step("looks for a copy", func(s *publishedState, me *publishedCall) {
			now := me.now
			if fault == "refuses by the time of the copy" {
				now = s.copied.until - 1
			}
			same := s.copied.key == me.key || fault == "does not compare the keys"
			if me.at = waiting; !frees && s.copied.is && same && now < s.copied.until {
				me.at = returned
				s.wrong = s.until[me.key] <= me.now
			}
		})
	case waiting:
		if s.locked {
			return
		}
		step("takes the lock", func(s *publishedState, me *publishedCall) {
			switch {
			case frees, s.until[me.key] <= me.now:
				if s.copied.is && s.copied.key == me.key && fault != "changes the state and keeps the copy" {
					s.copied, s.count = copied{}, 0
				}
				me.at, s.locked = changing, true
			default:
				s.count = min(s.count+1, publishAfter+1)
				if s.last != me.key {
					s.last, s.count = me.key, 1
				}
				me.at = called // and it asks again
				switch {
				case s.count != publishAfter:
				case fault == "publishes after it has released the lock":
					me.at, me.until = unlocked, s.until[me.key]
				default:
					s.copied = copied{true, me.key, s.until[me.key]}
				}
			}
		})
	case changing:
		step("changes the state", func(s *publishedState, me *publishedCall) {
			s.until[me.key] = me.now + 2
			if frees {
				s.until[me.key] = 0
			}
			me.at, s.locked = called, false
			if frees {
				me.at = returned
			}
		})
	case unlocked:
		step("publishes", func(s *publishedState, me *publishedCall) {
			s.copied = copied{true, me.key, me.until}
			me.at = called
		})
	}
}
