package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/quota"
)

// RateLimit responds with the caller's own quota, in the format of GitHub's [GET /rate_limit],
// without spending any of it:
//
//	{"resources": {"api": {"limit": 100, "used": 97, "remaining": 3, "reset": 1795221649}},
//	 "rate": {"limit": 100, "used": 97, "remaining": 3, "reset": 1795221649}}
//
// RateLimit is meant for clients, whereas only operators should be able to reach ServeHTTP. The
// response contains a resource for each rule that applies to the request. If a rule's key contains
// the route or method, the resource shows the quota for the route and method of this request. If a
// rule has several limits, the resource shows the limit that has the smallest fraction of its quota
// left, as the header fields do. The "reset" field is the Unix time in seconds at which the quota
// will be full again. The "rate" field is a copy of the first resource, and is omitted if there are
// no resources.
//
// Private rules, and rules that are in shadow mode for the caller, are omitted. If the caller is banned, "remaining" is
// 0, and "reset" is no earlier than the end of the ban. If a rule denies the caller, RateLimit
// responds with that rule's refusal.
//
// RateLimit calls the store once for each limiter and once for each rule with a penalty. If this
// load is too high, add a separate rule that limits calls to the RateLimit method.
//
// [GET /rate_limit]: https://docs.github.com/en/rest/rate-limit
func (h *Handler) RateLimit(w http.ResponseWriter, r *http.Request) {
	answer, err := h.rateLimit(w, r)
	var refused *weir.RefusedError
	switch {
	case errors.As(err, &refused):
		weir.Refuse(w, r.WithContext(refused.Admission.Context()))
	case err != nil:
		h.fail(w, r, err)
	default:
		write(w, http.StatusOK, "application/json", answer)
	}
}

func (h *Handler) rateLimit(w http.ResponseWriter, r *http.Request) (*rateLimitAnswer, error) {
	if err := allow(w, r, http.MethodGet, http.MethodHead); err != nil {
		return nil, err
	}
	peekers, err := h.peekersInForce()
	if err != nil {
		return nil, err
	}
	answer := &rateLimitAnswer{Resources: map[string]resource{}}
	for i, l := range peekers.limiters {
		a, err := peekers.free[i].Admit(r)
		var refused *weir.RefusedError
		if errors.As(err, &refused) && refused.Admission.Refusal.Reason == weir.ReasonError {
			err = storeFailed // notRead has logged the error
		}
		if err == nil {
			if err = answer.add(r.Context(), l, peekers.private[i], &a.Transaction); err != nil {
				err = h.notRead(nil, err)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// notRead logs the error of a store or a policy, and returns the answer for the client.
func (h *Handler) notRead(_ *http.Request, err error) error {
	h.failures.Error("admin: quota of a client not read", "err", err, "cause", quota.Cause(err))
	return storeFailed
}

type rateLimitAnswer struct {
	Resources map[string]resource `json:"resources"`
	Rate      *resource           `json:"rate,omitempty"`
}

type resource struct {
	Limit     int64 `json:"limit"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	Reset     int64 `json:"reset"`
}

// add adds a resource for each rule in t that is not private. The transaction t has a charge for
// each limit of these rules.
func (a *rateLimitAnswer) add(ctx context.Context, limiter *weir.Limiter, private map[string]bool, t *quota.Transaction) error {
	n := 0 // how many limits the rule has
	for charges, decisions := t.Charges, t.Decisions; len(charges) > 0; charges, decisions = charges[n:], decisions[n:] {
		rule, key := charges[0].Rule, charges[0].Key
		for n = 1; n < len(charges) && charges[n].Rule == rule; {
			n++
		}
		if private[rule] {
			continue
		}
		res := tightest(&t.Result, charges[:n], decisions[:n])
		rest, err := limiter.Banned(ctx, rule, key)
		if err != nil {
			return err
		}
		if rest > 0 {
			res = resource{res.Limit, res.Limit, 0, max(res.Reset, unixSeconds(t.At.Add(rest)))}
		}
		if a.Rate == nil {
			a.Rate = &res
		}
		a.Resources[rule] = res
	}
	return nil
}

// tightest returns the limit that has the smallest share of its capacity left.
func tightest(of *quota.Result, charges []quota.Charge, decisions []quota.Decision) (res resource) {
	least := 2.0
	for i, d := range decisions {
		l := charges[i].Limit
		l.Divide(max(1, of.Replicas))
		all := l.Capacity()
		if share := float64(d.Remaining) / float64(all); share < least {
			least = share
			res = resource{all, all - d.Remaining, d.Remaining, unixSeconds(of.At.Add(l.FullAfter(&d)))}
		}
	}
	return res
}

// unixSeconds returns t in seconds since 1970, rounded up so that the quota is full by then.
func unixSeconds(t time.Time) int64 { return t.Add(time.Second - 1).Unix() }

// A peekers value is made from the limiters in force, and is replaced when they change.
type peekers struct {
	limiters []*weir.Limiter
	free     []*weir.Limiter   // like limiters, but all requests cost 0
	private  []map[string]bool // the names of their private rules
}

func (h *Handler) peekersInForce() (*peekers, error) {
	limiters := h.o.Limiters()
	if p := h.peekers.Load(); p != nil && slices.Equal(p.limiters, limiters) {
		return p, nil
	}
	p := &peekers{limiters: slices.Clone(limiters)}
	for _, l := range p.limiters {
		rules, private := l.Rules(), map[string]bool{}
		for i := range rules {
			private[rules[i].Name] = rules[i].Private
			rules[i].Cost = func(*http.Request) int64 { return 0 }
			rules[i].Settle, rules[i].Penalty = nil, nil
		}
		free, err := weir.New(h.store, weir.Options{
			Rules:   rules,
			Headers: headers.None,
			Logger:  slog.New(slog.DiscardHandler), // a cost of 0 would look like a misconfiguration
			OnError: h.notRead,
		})
		if err != nil {
			return nil, err
		}
		p.free, p.private = append(p.free, free), append(p.private, private)
	}
	h.peekers.Store(p)
	return p, nil
}
