package scene

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"

	"github.com/seed83679106/weir/quota"
)

// A Trial asks what every algorithm makes of the same requests. Period is in seconds; a Burst of 0
// means Quota. Times are in µs, in ascending order, and at each of them
// Each requests come at once. The other fields are the answers to questions.
type Trial struct {
	Quota  int64   `json:"quota"`
	Period int64   `json:"period"`
	Burst  int64   `json:"burst"`
	Times  []int64 `json:"times"`
	Each   int64   `json:"each"`

	Late  string `json:"late"`  // what happens to a request that is too early: "refuse" or "wait"
	Exact bool   `json:"exact"` // whether no period may hold more than the quota, wherever it begins
	Back  string `json:"back"`  // how the quota comes back: "gradually", "hourly" (on the clock), "daily" or "anchored"
	Deployment
}

// A Verdict is what one algorithm made of the requests of a Trial.
type Verdict struct {
	Algorithm string `json:"algorithm"`
	Title     string `json:"title"`
	Error     string `json:"error,omitempty"` // why the algorithm cannot count this limit
	Admitted  int64  `json:"admitted"`
	Refused   int64  `json:"refused"`
	Most      int64  `json:"most"`   // the most that passed within any period
	Worst     int64  `json:"worst"`  // the most that could pass within a period, whatever comes
	Breaks    bool   `json:"breaks"` // whether Worst is more than the quota, although that must never happen
	Wait      int64  `json:"wait"`   // the longest wait until a refused or queued request fits, in µs
	Bytes     int64  `json:"bytes"`  // the most that the key takes in a memstore
}

// An Outcome answers a Trial.
type Outcome struct {
	Verdicts []Verdict `json:"verdicts"`
	Advice   Advice    `json:"advice"`
}

const maxTimes = 2000 // of a Trial

// Compare answers a Trial in JSON with an Outcome in JSON. If the trial
// is not valid, it answers with a Reply with an Error.
func Compare(trial []byte) []byte {
	var t Trial
	if err := json.Unmarshal(trial, &t); err != nil {
		return reply(Reply{Error: err.Error()})
	}
	number := func(n int64) []string { return []string{strconv.FormatInt(n, 10)} }
	set, err := parse(url.Values{"quota": number(t.Quota), "period": number(t.Period), "burst": number(t.Burst)})
	if err == nil && len(t.Times) > maxTimes {
		err = fmt.Errorf("%d requests are more than %d", len(t.Times), maxTimes)
	}
	if err != nil {
		return reply(Reply{Error: err.Error()})
	}
	advice, verdicts := advise(&t, &set), []Verdict{}
	for i := range kinds {
		k, own := &kinds[i], set
		if k.queue {
			own = set.queued()
		} else if k.name == advice.Algorithm && advice.Burst > 0 {
			own.Burst = advice.Burst
		}
		v := k.judge(&own, t.Times, max(1, t.Each))
		v.Breaks = t.Exact && v.Worst > t.Quota
		verdicts = append(verdicts, v)
	}
	return reply(Outcome{verdicts, advice})
}

// judge decides the requests of a trial.
func (k *kind) judge(set *settings, times []int64, each int64) Verdict {
	v := Verdict{Algorithm: k.name, Title: k.title}
	if k.name == "calendar" && set.Period != 24*60*60 {
		v.Error = "counts whole days, so it needs a limit for 1 day"
		return v
	}
	if k.queue && set.Burst == 1 {
		v.Error = fmt.Sprintf("nobody would wait in its queue: one request fits every %s", short(set.every()))
		return v
	}
	charge := quota.Charge{Rule: "api", Limit: k.limitOf(set), Cost: 1}
	t := quota.Transaction{Charges: []quota.Charge{charge}}
	if err := t.Validate(); err != nil {
		v.Error = err.Error()
		return v
	}
	store, passed := &memory{states: map[stateKey]quota.State{}}, span{}
	take := func(t *quota.Transaction) error {
		err := store.Take(context.Background(), t)
		v.Wait = max(v.Wait, t.Wait.Microseconds()) // of several sent at once, not only the last part
		return err
	}
	for _, at := range times {
		store.now = epoch + at
		n, _ := send(take, &t, charge, k.within(set), each) // cannot fail: the charge is valid
		v.Admitted += n
		v.Refused += each - n
		if n > 0 {
			passed.add(at+t.Wait.Microseconds(), n, set.Period*second)
			v.Most = max(v.Most, passed.sum)
		}
		v.Wait = max(v.Wait, t.RetryAfter().Microseconds())
		if n < each && t.Mode == quota.ModeAtMost {
			v.Wait = max(v.Wait, t.Decisions[0].NextAfter.Microseconds())
		}
	}
	if k.queue { // units that wait together leave one by one, a period / quota apart
		v.Most = min(v.Most, set.Quota)
	}
	v.Worst, v.Bytes = k.worst(charge.Limit), k.bytes(charge.Limit)
	return v
}
