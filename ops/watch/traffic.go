package watch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/internal/tally"
	"github.com/seed83679106/weir/quota"
)

// traffic remembers the latest requests, and counts those of the last 15 minutes.
type traffic struct {
	mu        sync.Mutex
	began     time.Time // of slot 0 of History
	total     history
	rules     []string
	histories []*history // of rules
	cause     string     // of the last request for which no decision was possible
	failed    time.Time

	ring []recordedRequest
	n    int64  // how many requests were recorded
	keys []byte // a ring of the keys of the recorded requests, one key after the other
	end  int64  // number of bytes written to keys so far: the next key goes to end % len(keys)
}

// A recordedRequest is a request that was charged under one rule.
type recordedRequest struct {
	at      int64 // µs since 1970
	cost    int64 // units
	key     int64 // where its key begins, counted like traffic.end
	length  uint8 // of the key, in bytes
	refused bool
	rule    uint16 // index into traffic.rules
}

const (
	keyBytes = 32   // room for the key of one request
	maxRules = 1000 // requests under further rules are not recorded
)

// init makes t remember n requests.
func (t *traffic) init(n int) {
	t.began, t.ring, t.keys = time.Now(), make([]recordedRequest, n), make([]byte, max(256, n*keyBytes))
}

// observe records a request under each rule that charges it at least 1 unit, even if a limit
// refused the request. History also counts requests that are refused by a deny list, or by a ban
// that the process remembers. Try does not count such requests, because no limit is evaluated for
// them.
func (t *traffic) observe(e *weir.Event) {
	if e.Transaction == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now, _ := t.slot()
	if e.Err != nil {
		t.fail(e, now)
		return
	}
	by := e.Refusal.Reason
	if by != 0 || !e.Shadow {
		t.total.observe(now, by == 0, by != 0, false, e.Shadow)
	}
	if len(e.Transaction.Charges) == 0 && by != 0 { // the store was not called
		if rule := t.rule(e.Refusal.Rule); rule >= 0 {
			t.histories[rule].observe(now, false, true, false, e.Shadow)
		}
	}
	t.count(e, now)
}

// slot returns the number of the current interval of History, from 0, and how long it has lasted.
// The caller holds t.mu.
func (t *traffic) slot() (n int64, since time.Duration) {
	if t.ring == nil {
		t.init(defaultRequests)
	}
	now := time.Since(t.began)
	return int64(now / HistoryEvery), now % HistoryEvery
}

// count counts a request under each rule that charges it.
func (t *traffic) count(e *weir.Event, now int64) {
	by, charges, decisions := e.Refusal.Reason, e.Transaction.Charges, e.Transaction.Decisions
	for i := 0; i < len(charges); {
		first, refused, near := i, false, false
		for ; i < len(charges) && charges[i].Rule == charges[first].Rule; i++ {
			refused = refused || !decisions[i].Allowed
			near = near || by == 0 && tally.IsNear(&charges[i].Limit, &decisions[i], e.Transaction.Replicas)
		}
		c := &charges[first]
		if c.Cost < 1 {
			continue
		}
		rule := t.rule(c.Rule)
		if rule < 0 {
			continue
		}
		t.record(rule, c, e.Transaction.At.UnixMicro(), refused)
		refused = refused || by > weir.ReasonLimit && e.Refusal.Rule == c.Rule // a ban, a pause or a missing key refuses even if the limits have room
		t.histories[rule].observe(now, by == 0, refused, near, e.Shadow)
	}
}

// fail counts a request that could not be decided.
func (t *traffic) fail(e *weir.Event, now int64) {
	t.failed, t.cause = time.Now(), quota.Cause(e.Err)
	if e.Shadow {
		return
	}
	s := t.total.at(now)
	s.Failed++
	if e.Passed {
		s.Passed++
	}
}

// record records a request under a rule.
func (t *traffic) record(rule int, c *quota.Charge, at int64, refused bool) {
	key, size := storedkey.Of(c.Key), int64(len(t.keys))
	if rest := size - t.end%size; rest < int64(len(key)) {
		t.end += rest
	}
	copy(t.keys[t.end%size:], key)
	t.ring[t.n%int64(len(t.ring))] = recordedRequest{at, c.Cost, t.end, uint8(len(key)), refused, uint16(rule)}
	t.n, t.end = t.n+1, t.end+int64(len(key))
}

// rule returns the index of a rule in rules, or -1 if there are too many rules.
func (t *traffic) rule(name string) int {
	i := slices.Index(t.rules, name)
	if i < 0 && len(t.rules) < maxRules {
		i, t.rules, t.histories = len(t.rules), append(t.rules, strings.Clone(name)), append(t.histories, new(history))
	}
	return i
}

// A Trial is the result of testing limits on recorded requests.
type Trial struct {
	From, To time.Time // the times of the first and the last request

	Requests    int
	WereRefused int // requests that were refused when they were recorded
	Refused     int // requests that the tried limits would have refused
	Keys        int // number of different keys
	RefusedKeys int // number of different keys with at least one such request

	Top []Refused // at most ten keys: those that the tried limits would have refused most often
}

// Try tests limits on the requests that were recorded under a rule, and returns how many of them
// the limits would have refused. In this test, each key starts with its full quota. The result is
// therefore of little use if a limit's Period is longer than the time that the recorded requests
// cover. The result is also uncertain because real clients might have sent different requests after
// a refusal. Try returns an error if there are no limits, if a limit is invalid, or if a limit is a
// concurrency limit.
func (t *traffic) Try(rule string, limits ...weir.Limit) (trial Trial, err error) {
	if len(limits) == 0 {
		return trial, errors.New("watch: Try: limits is empty")
	}
	for _, l := range limits {
		if err := l.Validate(); err != nil {
			return trial, err
		}
		if l.InFlight() {
			return trial, fmt.Errorf("watch: Try: %s counts requests in flight, but the ends of requests are not recorded",
				l.Algorithm.Name())
		}
	}
	type client struct {
		states  []quota.State
		refused int64
	}
	clients := map[string]*client{}
	for _, r := range t.of(rule) {
		c := clients[r.key]
		if c == nil {
			c = &client{states: make([]quota.State, len(limits))}
			clients[r.key] = c
		}
		trial.To = time.UnixMicro(r.at)
		if trial.Requests++; trial.Requests == 1 {
			trial.From = trial.To
		}
		if r.refused {
			trial.WereRefused++
		}
		if !take(c.states, limits, &r.recordedRequest) {
			trial.Refused++
			c.refused++
		}
	}
	trial.Keys = len(clients)
	for key, c := range clients {
		if c.refused > 0 {
			trial.Top = append(trial.Top, Refused{Rule: rule, Key: key, Count: c.refused})
		}
	}
	trial.RefusedKeys = len(trial.Top)
	slices.SortFunc(trial.Top, func(a, b Refused) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Key, b.Key))
	})
	trial.Top = trial.Top[:min(10, len(trial.Top))]
	return trial, nil
}

// take charges a request to all limits if all of them have room for it, and reports whether they
// had room.
func take(states []quota.State, limits []weir.Limit, r *recordedRequest) bool {
	next := make([]quota.State, len(limits))
	for i := range limits {
		var d quota.Decision
		if next[i], d = limits[i].Algorithm.Take(states[i], &limits[i], r.at, r.cost); !d.Allowed {
			return false
		}
	}
	copy(states, next)
	return true
}

type keyed struct {
	recordedRequest
	key string
}

// of returns the recorded requests under a rule, the earliest first.
func (t *traffic) of(rule string) (list []keyed) {
	t.mu.Lock()
	id := slices.Index(t.rules, rule)
	size := int64(len(t.keys))
	for i := max(0, t.n-int64(len(t.ring))); i < t.n; i++ {
		r := t.ring[i%int64(len(t.ring))]
		if int(r.rule) == id && t.end-r.key <= size { // a later key may have overwritten its key
			begin := r.key % size
			list = append(list, keyed{r, string(t.keys[begin : begin+int64(r.length)])})
		}
	}
	t.mu.Unlock()
	slices.SortStableFunc(list, func(a, b keyed) int { return cmp.Compare(a.at, b.at) })
	return list
}
