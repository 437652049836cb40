package scene

import (
	"fmt"
	"time"
)

// An Advice names the algorithm that suits the answers of a Trial.
type Advice struct {
	Algorithm string   `json:"algorithm"`
	Title     string   `json:"title"`
	Burst     int64    `json:"burst"` // 0 means the burst of the trial
	Why       string   `json:"why"`
	GivenUp   []string `json:"givenUp"`   // the answers that conflict with others, and what to change if they matter more
	Customers string   `json:"customers"` // what to write to customers
	Go        string   `json:"go"`        // a program, a file of rules, and a test
	YAML      string   `json:"yaml"`
	Test      string   `json:"test"`
}

const (
	exactUpTo = 1000             // the largest quota for which a sliding log is advised, because of its memory
	patience  = 30 * time.Second // how long a request may wait in a queue: few clients wait longer
	maxQueue  = 1000
)

// every returns the time in which one request of the quota becomes free.
func (set *settings) every() time.Duration {
	return time.Duration(set.Period) * time.Second / time.Duration(set.Quota)
}

// queued returns settings of a leaky bucket in whose queue nobody waits longer than patience. A
// Burst of 1 leaves no place.
func (set settings) queued() settings {
	places := min(set.burst()-1, int64(patience/set.every()), maxQueue)
	set.Burst, set.Wait = places+1, int64((time.Duration(places)*set.every()+time.Second-1)/time.Second)
	return set
}

// windows are the algorithms for answers to the question how the quota comes back, with the words of
// the answer.
var windows = map[string]struct{ algorithm, answer string }{
	"hourly":   {"fixed-window", "at once, on the clock"},
	"daily":    {"calendar", "at midnight"},
	"anchored": {"anchored-window", "at once, from the first call"},
}

// advise chooses an algorithm as docs/guide.md does. Where answers conflict, the one about waiting
// goes before the one about how the quota comes back, and “must never happen” before that one, too.
func advise(t *Trial, set *settings) (a Advice) {
	q, b, each, every, queue := set.Quota, set.burst(), long(set.Period), set.every(), set.queued()
	giveUp := func(answer, format string, args ...any) {
		a.GivenUp = append(a.GivenUp, "“"+answer+"” is given up: "+fmt.Sprintf(format, args...))
	}
	back, wait := windows[t.Back], t.Late == "wait" && queue.Burst > 1
	if t.Late == "wait" && !wait && b == 1 {
		giveUp("waits in a queue", "with at most 1 at once, the queue has no place.")
	} else if t.Late == "wait" && !wait {
		giveUp("waits in a queue", "one request fits every %s, and few clients wait longer than %s. So it is refused.", short(every), short(patience))
	}
	if back.algorithm == "calendar" && set.Period != 24*60*60 {
		giveUp(back.answer, "the limit is for %s, not for 1 day. So the quota comes back on the clock.", each)
		back = windows["hourly"]
	}
	switch {
	case back.algorithm != "" && wait:
		giveUp(back.answer, "a queue lets one request through every %s. If it matters more, choose “is refused”.", short(every))
	case back.algorithm != "" && t.Exact:
		giveUp(back.answer, "%s could then hold %s, and you chose “must never happen”. If it matters more, choose “is fine for a client that was idle”.", each, commas(kindOf(back.algorithm).worst(kindOf(back.algorithm).limitOf(set))))
	case back.algorithm != "":
		a.Algorithm = back.algorithm
	}
	switch {
	case wait:
		a.Algorithm, a.Burst = "leaky-bucket", queue.Burst
		if set.Burst > a.Burst {
			giveUp(fmt.Sprintf("at most %s at once", commas(set.Burst)), "the last of them would wait %s, and few clients wait longer than %s.", short(time.Duration(b-1)*every), short(patience))
		}
	case a.Algorithm != "":
		if set.Burst != 0 && set.Burst != q {
			giveUp(fmt.Sprintf("at most %s at once", commas(set.Burst)), "a window lets its %s through at once. A second limit can forbid that (scene 10), or choose “bit by bit”.", commas(q))
		}
	case t.Exact && q <= exactUpTo:
		a.Algorithm = "sliding-log"
		if set.Burst > q {
			giveUp(fmt.Sprintf("at most %s at once", commas(set.Burst)), "they alone are more than %s in %s, and you chose “must never happen”. If it matters more, choose “is fine for a client that was idle”.", commas(q), each)
		} else if set.Burst != 0 && set.Burst != q {
			giveUp(fmt.Sprintf("at most %s at once", commas(set.Burst)), "a sliding log lets %s through at once. A second limit can forbid that (scene 10).", commas(q))
		}
	case t.Exact:
		a.Algorithm, a.Burst = "gcra", 1
		if set.Burst > 1 {
			giveUp(fmt.Sprintf("at most %s at once", commas(set.Burst)), "%s could then hold %s, and you chose “must never happen”. If it matters more, choose “is fine for a client that was idle”.", each, commas(b+q-1))
		}
	default:
		a.Algorithm = "gcra"
	}
	k, s := kindOf(a.Algorithm), *set
	if wait {
		s = queue
	} else if a.Burst != 0 {
		s.Burst = a.Burst
	}
	c := code{k, &s, t.Deployment}
	a.Title, a.Why, a.Customers = k.title, c.why(), c.customers()
	a.Go, a.YAML, a.Test = c.program(), c.yaml(), c.test()
	return a
}

// why says why the algorithm suits the answers.
func (c code) why() string {
	every, q, b, each, most := c.every(), commas(c.Quota), commas(c.burst()), long(c.Period), c.worst(c.limitOf(c.settings))
	switch c.name {
	case "leaky-bucket":
		return fmt.Sprintf("Up to %s requests wait in a queue, and one goes ahead every %s. The last waits %s; one that finds no place is refused. No period of %s holds more than %s.", commas(c.burst()-1), short(every), short(time.Duration(c.burst()-1)*every), each, q)
	case "calendar":
		return fmt.Sprintf("Contracts count days, and its window is a day of UTC; the code can name another time zone. Around midnight, up to %s can pass within %s.", commas(most), each)
	case "fixed-window":
		return fmt.Sprintf("The whole quota is back on the clock, which clients understand. Around the edge of a window, up to %s can pass within %s.", commas(most), each)
	case "anchored-window":
		return fmt.Sprintf("The window begins with a client's first request, and the whole quota is back after %s. Around its end, up to %s can pass within %s.", each, commas(most), each)
	case "sliding-log":
		return fmt.Sprintf("Up to %s may come at once, and whatever clients send, no period of %s holds more than %s. It keeps a time for each request: up to %s bytes for a client.", q, each, q, commas(c.bytes(c.limitOf(c.settings))))
	}
	if most <= c.Quota {
		return fmt.Sprintf("With a burst of 1, one request fits every %s, and no period of %s holds more than %s. It keeps one number; a log of so many times would be too large for each client.", short(every), each, q)
	}
	return fmt.Sprintf("It allows %s at once, then one every %s, and keeps one number. So %s can hold %s: %s at once, and %s that become free meanwhile. Allow fewer at once if that is too many.", b, short(every), each, commas(most), b, commas(most-c.burst()))
}

// customers returns what customers should know, to copy.
func (c code) customers() string {
	who, every, q, each := map[string]string{"key": "Each API key", "account": "Each account"}[c.Whose], c.every(), commas(c.Quota), long(c.Period)
	if who == "" {
		who = "Each client address"
	}
	s := ""
	switch c.name {
	case "leaky-bucket":
		s = fmt.Sprintf("%s may send one request every %s. Up to %s that come earlier wait in a queue, the last of them for %s.", who, short(every), commas(c.burst()-1), short(time.Duration(c.burst()-1)*every))
	case "calendar":
		s = fmt.Sprintf("%s may send %s requests a day. The whole quota is back at midnight UTC.", who, q)
	case "fixed-window":
		s = fmt.Sprintf("%s may send %s requests in %s. The whole quota is back on the clock (UTC), every %s.", who, q, each, each)
	case "anchored-window":
		s = fmt.Sprintf("%s may send %s requests in %s. The time begins with the first request; after it, the whole quota is back.", who, q, each)
	case "sliding-log":
		s = fmt.Sprintf("%s may send %s requests in any %s. A request counts for %s; then another fits.", who, q, each, each)
	default:
		s = fmt.Sprintf("%s may send %s requests in %s: up to %s at once, and then one more every %s.", who, q, each, commas(c.burst()), short(every))
		if c.burst() == 1 {
			s = fmt.Sprintf("%s may send one request every %s, which is %s in %s.", who, short(every), q, each)
		}
	}
	return s + " A request above that is not carried out: it gets the HTTP status 429 (Too Many Requests), and the field Retry-After says after how many seconds it fits." +
		" Every response says how many requests are left (X-RateLimit-Remaining) of how many (X-RateLimit-Limit), and when all are back (X-RateLimit-Reset, in Unix seconds)."
}
