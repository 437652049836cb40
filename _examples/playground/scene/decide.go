package scene

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A Question is one transaction. The page keeps the states itself, so that it can go back
// to earlier ones. Durations are in µs, and instants in µs since 1970.
type Question struct {
	Now     int64
	Within  int64
	Most    int64 // if above 0, the charges are spent as often as they fit, up to Most times
	Charges []Charge
	States  []quota.State // one for each charge, or none if the keys are new
}

// A Charge is a quota.Charge under one of the algorithms, or "in-flight". Period is in µs. The
// days of a calendar begin Zone hours before those of UTC.
type Charge struct {
	Algorithm string  `json:"algorithm"`
	Quota     int64   `json:"quota"`
	Period    int64   `json:"period"`
	Burst     int64   `json:"burst"`
	Zone      float64 `json:"zone"`
	Key       string  `json:"key"`
	Cost      int64   `json:"cost"`
}

// A Reply is the answer to a Question. Wait is in µs.
type Reply struct {
	Error     string        `json:"error,omitempty"`
	Allowed   bool          `json:"allowed"`
	Wait      int64         `json:"wait"`
	Granted   int64         `json:"granted"` // how often the charges were spent
	Decisions []Decision    `json:"decisions"`
	States    []quota.State `json:"states"` // after the decision
}

// A Decision is a quota.Decision with durations in µs. RetryAfter is -1 for quota.Never.
type Decision struct {
	Allowed    bool  `json:"allowed"`
	Remaining  int64 `json:"remaining"`
	RetryAfter int64 `json:"retryAfter"`
	NextAfter  int64 `json:"nextAfter"`
	ResetAfter int64 `json:"resetAfter"`
}

func (c *Charge) charge() (quota.Charge, error) {
	period := time.Duration(c.Period) * time.Microsecond
	charge := quota.Charge{Rule: "api", Key: c.Key, Cost: c.Cost}
	k := kindOf(c.Algorithm)
	switch {
	case c.Algorithm == "in-flight":
		charge.Limit = algorithms.InFlight(c.Quota, period)
	case k == nil:
		return quota.Charge{}, fmt.Errorf("there is no algorithm %q", c.Algorithm)
	case k.extra:
		charge.Limit = algorithms.Calendar(c.Quota, algorithms.Day, time.FixedZone("", int(c.Zone*60*60)))
	case k.bucket == nil:
		charge.Limit = k.limit(c.Quota, period)
	default:
		charge.Limit = k.bucket(c.Burst, c.Quota, period)
	}
	return charge, nil
}

// Decide answers a Question.
func Decide(q *Question) Reply {
	t := quota.Transaction{Within: time.Duration(q.Within) * time.Microsecond, Most: q.Most}
	if q.Most > 0 {
		t.Mode = quota.ModeAtMost
	}
	for i := range q.Charges {
		c, err := q.Charges[i].charge()
		if err != nil {
			return Reply{Error: err.Error()}
		}
		t.Charges = append(t.Charges, c)
	}
	if err := t.Validate(); err != nil {
		return Reply{Error: err.Error()}
	}
	states := append(q.States, make([]quota.State, len(t.Charges))...)[:len(t.Charges)]
	t.Decide(q.Now, states)
	if q.Most == 0 && t.Allowed() {
		t.Granted = 1
	}
	return Reply{Allowed: t.Allowed(), Granted: t.Granted, Wait: t.Wait.Microseconds(), Decisions: decisions(&t), States: states}
}

func decisions(t *quota.Transaction) (all []Decision) {
	for _, d := range t.Decisions {
		retry := d.RetryAfter.Microseconds()
		if d.RetryAfter == quota.Never {
			retry = -1
		}
		all = append(all, Decision{d.Allowed, d.Remaining, retry, d.NextAfter.Microseconds(), d.ResetAfter.Microseconds()})
	}
	return all
}

func reply(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible: these are structs of numbers and strings
	}
	return data
}

// Replicas simulates processes that share one store, or count each by itself. The stores are
// memstores, on the clock of this process.
type Replicas struct {
	store   *counted
	replica []quota.Store
}

// NewReplicas returns n replicas. They count "apart", each in its own memory; "shared", in one store
// that decides every request; or in that store with a "hybrid" in front of it, in each replica.
func NewReplicas(n int, count string) *Replicas {
	r := &Replicas{store: &counted{Store: memstore.New(memstore.Options{})}}
	for range n {
		var s quota.Store = r.store
		switch count {
		case "apart":
			s = memstore.New(memstore.Options{})
		case "hybrid":
			s = quota.Hybrid(r.store, quota.HybridOptions{MaxKeys: most})
		}
		r.replica = append(r.replica, s)
	}
	return r
}

// A Call is the decision about a request to a replica.
type Call struct {
	Decision
	At    int64 `json:"at"`    // on the clock of the store, in µs since 1970
	Asked bool  `json:"asked"` // whether the replica asked the store
}

// Take sends a request to replica i, counting from 0. charge is a Charge in JSON. The
// result is a Call in JSON, or a Reply with an Error.
func (r *Replicas) Take(i int, charge []byte) []byte {
	var c Charge
	if err := json.Unmarshal(charge, &c); err != nil {
		return reply(Reply{Error: err.Error()})
	}
	wc, err := c.charge()
	if err != nil {
		return reply(Reply{Error: err.Error()})
	}
	t, before := quota.Transaction{Charges: []quota.Charge{wc}}, r.store.n
	if err := r.replica[i].Take(context.Background(), &t); err != nil {
		return reply(Reply{Error: err.Error()})
	}
	return reply(Call{decisions(&t)[0], t.At.UnixMicro(), r.store.n > before})
}
