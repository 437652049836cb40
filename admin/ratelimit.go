package admin

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/seed83679106/weir"
)

// RateLimit tells callers their own quota, in the shape of GitHub's
// [GET /rate_limit], and spends nothing of it:
//
//	{"resources": {"api": {"limit": 100, "used": 97, "remaining": 3, "reset": 1795221649}},
//	 "rate": {"limit": 100, "used": 97, "remaining": 3, "reset": 1795221649}}
//
// It is for everybody, and so a handler of its own. Resources are the rules that
// would apply to the request if it were another, so keys of routes and methods
// are those of this one; rate is the first of them, in the order of the limiters,
// and not there if there is none. Of a rule with several limits it is the
// tightest, as in header fields. reset is when the key is as good as new, in Unix
// seconds. Rules that are in shadow for the caller are not shown. To a caller who
// is banned nothing remains until the ban is over, and whom a rule denies it
// answers as that rule does.
//
// It asks the store once for each limiter, and again for each rule with a
// penalty: limit it, by a rule of its own, where that is too much.
//
// [GET /rate_limit]: https://docs.github.com/en/rest/rate-limit
func (h *Handler) RateLimit(w http.ResponseWriter, r *http.Request) {
	if err := allow(w, r, http.MethodGet, http.MethodHead); err != nil {
		h.fail(w, r, err)
		return
	}
	all, err := h.lookers()
	if err != nil {
		h.fail(w, r, err)
		return
	}
	body := struct {
		Resources map[string]resource `json:"resources"`
		Rate      *resource           `json:"rate,omitempty"`
	}{Resources: map[string]resource{}}
	for _, l := range all {
		t, ok := l.look(w, r)
		if !ok {
			return
		}
		for len(t.Charges) > 0 {
			n := 1 // limits of the same rule and key
			for n < len(t.Charges) && t.Charges[n].Rule == t.Charges[0].Rule {
				n++
			}
			of := tightest(t.At, t.Charges[:n], t.Decisions[:n])
			name := t.Charges[0].Rule
			rest, err := l.of.Banned(r.Context(), name, t.Charges[0].Key)
			if err != nil {
				h.fail(w, r, err)
				return
			}
			if rest > 0 {
				of = resource{of.Limit, of.Limit, 0, max(of.Reset, unixSeconds(t.At.Add(rest)))}
			}
			if body.Rate == nil {
				body.Rate = &of
			}
			body.Resources[name] = of
			t.Charges, t.Decisions = t.Charges[n:], t.Decisions[n:]
		}
	}
	write(w, http.StatusOK, "application/json", body)
}

type resource struct {
	Limit     int64 `json:"limit"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	Reset     int64 `json:"reset"`
}

// tightest is that with the smallest share left.
func tightest(at time.Time, charges []weir.Charge, decisions []weir.Decision) (tight resource) {
	least := 2.0
	for i, d := range decisions {
		all := charges[i].Limit.Capacity()
		if share := float64(d.Remaining) / float64(all); share < least {
			least = share
			tight = resource{all, all - d.Remaining, d.Remaining, unixSeconds(at.Add(d.ResetAfter))}
		}
	}
	return tight
}

// unixSeconds rounds up: then it has happened.
func unixSeconds(t time.Time) int64 { return t.Add(time.Second - 1).Unix() }

// looks are the lookers of limiters, made once for as long as these are in force.
type looks struct {
	of  []*weir.Limiter
	all []looker
}

// A looker applies the rules of a Limiter to requests, and charges nothing.
type looker struct {
	of, limiter *weir.Limiter
}

func (h *Handler) lookers() ([]looker, error) {
	limiters := h.o.Limiters()
	if l := h.looks.Load(); l != nil && slices.Equal(l.of, limiters) {
		return l.all, nil
	}
	now := &looks{of: slices.Clone(limiters)}
	for _, l := range now.of {
		rules := l.Rules()
		for i := range rules {
			rules[i].Cost = func(*http.Request) int64 { return 0 }
			rules[i].Settle, rules[i].Penalty = nil, nil
		}
		limiter, err := weir.New(h.store, weir.Options{
			Rules:   rules,
			Headers: weir.NoHeaders,
			Logger:  h.o.Logger,
			Observe: see,
			OnError: func(w http.ResponseWriter, r *http.Request, _ http.Handler, _ error) {
				h.fail(w, r, storeFailed) // the limiter logs it
			},
		})
		if err != nil {
			return nil, err
		}
		now.all = append(now.all, looker{l, limiter})
	}
	h.looks.Store(now)
	return now.all, nil
}

// look returns what the caller has left. If not ok the request has been
// answered.
func (l looker) look(w http.ResponseWriter, r *http.Request) (t weir.Transaction, ok bool) {
	ctx := context.WithValue(r.Context(), seenKey{}, &t)
	l.limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ok = true })).ServeHTTP(w, r.WithContext(ctx))
	return t, ok
}

type seenKey struct{}

// see keeps what a looker decides, for look. FromContext would tell of a limiter
// around this one where no rule applies.
func see(e weir.Event) {
	if e.Err == nil && !e.Shadow {
		t := e.Request.Context().Value(seenKey{}).(*weir.Transaction)
		*t = weir.Transaction{Charges: e.Transaction.Charges, Decisions: e.Transaction.Decisions, At: e.Transaction.At}
	}
}
