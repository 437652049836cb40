package scene

import "fmt"

// An Advice names the algorithm that suits the answers of a Trial.
type Advice struct {
	Algorithm string `json:"algorithm"`
	Burst     int64  `json:"burst"` // 0 means the burst of the trial
	Why       string `json:"why"`
	Go        string `json:"go"` // a program, a file of rules, and a test
	YAML      string `json:"yaml"`
	Test      string `json:"test"`
}

// exactUpTo is the largest quota for which a sliding log is advised: its entries take up to
// 32 bytes each.
const exactUpTo = 1000

// advise chooses an algorithm as docs/guide.md does.
func advise(t *Trial, set *settings) Advice {
	q, b := set.Quota, set.burst()
	switch {
	case t.Late == "wait":
		return Advice{Algorithm: "leaky-bucket", Why: fmt.Sprintf("Requests wait in a queue of at most %d and leave it at even intervals.", b)}
	case t.Back == "daily":
		return Advice{Algorithm: "calendar", Why: fmt.Sprintf("A contract says days, so the window is a day of a time zone. Around midnight, up to %d can pass.", 2*q)}
	case t.Back == "hourly":
		return Advice{Algorithm: "fixed-window", Why: fmt.Sprintf("The whole quota is back on the clock, which clients understand. Around the edge of a window, up to %d can pass.", 2*q)}
	case t.Exact && q <= exactUpTo:
		return Advice{Algorithm: "sliding-log", Why: fmt.Sprintf("It is the only one that admits a burst of %d and still never more than %d in any period. It keeps a time for each request.", q, q)}
	case t.Exact:
		return Advice{Algorithm: "gcra", Burst: 1, Why: fmt.Sprintf("A log of %d times is too large for each key. GCRA with a burst of 1 never admits more than %d in any period either, and keeps one number.", q, q)}
	}
	return Advice{Algorithm: "gcra", Why: fmt.Sprintf("It allows a burst of %d, then an even rate, and keeps one number. No period holds more than %d.", b, b+q-1)}
}
