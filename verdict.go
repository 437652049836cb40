package weir

import (
	"context"
	"sync/atomic"
	"time"
)

// A verdict is what a Limiter decides about a request. Most verdicts are recycled with
// their inquiries. The context of the next handler is a copy of the verdict without the
// inquiry. A copy for one limit has 160 bytes, and 80 more if it holds texts of header
// fields. FromContext makes a Transaction of the items of the copy.
type verdict struct {
	context.Context
	*inquiry
	items   []item // the first charges of the inquiry, in order
	extra   *extra
	at      int64 // µs since 1970, of the transaction
	waited  time.Duration
	refused bool
}

// An inquiry is what a store is asked about a request: first the charges that the request
// owes, and then charges that look up the bans and the pauses of its keys.
type inquiry struct {
	Transaction
	checks  []banCheck
	outer   *verdict // of the Limiter around this one
	misses  uint     // integers that were not shared; see fieldWriter.setNew
	free    bool     // the request is not charged, but may be refused
	entered bool     // the request is one of the MaxWaiting that may wait
	flies   bool     // some of the charges count requests in flight
}

// extra holds what few requests need.
type extra struct {
	refusal  Refusal      // a ban or a deny
	by       *rule        // the rule of refusal
	key      string       // the key that was banned or denied
	outbound bool         // the request goes out, and waits for pauses
	shadow   Transaction  // charges that refuse nothing
	items    []item       // of shadow
	spent    bool         // shadow was allowed
	used     atomic.Int64 // see ReportUsage
}

type verdictKey struct{}

// asking is the context in which stores are asked. It has the values of the request, but
// does not end with the request: a client that hangs up is charged.
type asking struct{ context.Context }

func (asking) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
func (asking) Done() <-chan struct{}                   { return nil }
func (asking) Err() error                              { return nil }

// An instant is a store that decides in memory, without waiting, and needs no context.
// Instant returns the store itself, so isInstant is false for a store that only embeds an
// instant.
type instant interface{ Instant() Store }

func isInstant(s Store) bool {
	i, ok := s.(instant)
	return ok && i.Instant() == s
}

// transaction returns the decided transaction or, if v has no inquiry, makes a Transaction
// of the items of v.
func (v *verdict) transaction() *Transaction {
	if v.inquiry != nil {
		return &v.Transaction
	}
	t := &Transaction{At: time.UnixMicro(v.at), Wait: v.waited}
	for i := range v.items {
		it := &v.items[i]
		t.Charges = append(t.Charges, Charge{Rule: it.rule.Name, Key: it.key, Limit: it.limit, Cost: it.cost})
		t.Decisions = append(t.Decisions, it.Decision)
	}
	if v.extra != nil && v.extra.refusal.Reason != 0 {
		t.Refusal = v.extra.refusal
	} else {
		t.Refusal, _ = t.refusal()
	}
	return t
}

func (v *verdict) Value(key any) any {
	if key == (verdictKey{}) {
		return v
	}
	return v.Context.Value(key)
}

// verdictOf returns the verdict of the innermost Limiter, or nil if there is none.
func verdictOf(ctx context.Context) *verdict {
	v, _ := ctx.Value(verdictKey{}).(*verdict)
	return v
}

func (v *verdict) extras() *extra {
	if v.extra == nil {
		v.extra = new(extra)
	}
	return v.extra
}

// FromContext returns the decision on the request with that context, or nil if no Limiter
// has charged or refused the request. If there are several decisions, it returns the
// decision of the innermost Limiter. Options.NoFromContext makes it return nil. The
// Transaction must not be changed. A handler may serve less if Remaining is low. OnLimited
// may read from Refusal why the request was refused. After a deny, or a ban that the
// process knows of, the Transaction has no Charges.
func FromContext(ctx context.Context) *Transaction {
	if v := verdictOf(ctx); v != nil {
		return v.transaction()
	}
	return nil
}
