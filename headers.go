package weir

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/recorder"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// newWriter returns a Writer that writes the header fields of the given rules in a dialect.
func newWriter(d headers.Dialect, rules []Rule) (*headers.Writer, error) {
	units := make([]string, len(rules))
	for i := range rules {
		units[i] = cmp.Or(rules[i].Unit, headers.Requests)
	}
	w, err := headers.NewWriter(d, units...)
	if err != nil {
		return nil, fmt.Errorf("weir: %w", err)
	}
	return w, nil
}

// defaultWriter is used for rules that belong to no Limiter.
var defaultWriter, _ = newWriter(0, nil)

// writeHeaders writes a decision into the response fields, together with the decisions of outer
// limiters on the same request, in the dialect of the outermost limiter. If no limit, or only
// private limits, refused the request, the fields describe no limits, because the units left under
// other limits would mislead the client. If lower is true, the names of the fields are in lower
// case.
func (l *Limiter) writeHeaders(h http.Header, s *snapshot, at time.Time, lower bool) {
	refused, w, dialect := s.why.Reason != 0, l.writer, s.front.o.Headers
	if !refused && (len(s.claims) == 0 || dialect == headers.None) {
		return
	}
	if dialect != l.o.Headers {
		w = s.front.writer
	}
	r := headers.Response{Header: h, At: at, Refused: refused, Lower: lower}
	if refused {
		r.RetryAfter = s.retryAfter()
	}
	if s.outer != nil || len(s.decisions) > few || l.special {
		writeAll(w, &r, s)
		return
	}
	var items [few]headers.Item // on the stack, where writing a pointer costs the least
	n := 0
	for i := range s.claims {
		limits := s.claims[i].limits
		for j := range limits {
			it := &items[n]
			it.Prepared, it.Decision, it.Replicas = limits[j].fields, &s.decisions[n], int(s.replicas)
			n++
		}
	}
	w.Write(&r, items[:n])
}

// writeAll writes all limits that apply to the request.
func writeAll(w *headers.Writer, r *headers.Response, s *snapshot) {
	var most [20]headers.Item
	items, n := most[:], 0
	if len(s.claims) > 0 {
		for ; s != nil; s = s.outer {
			if n+len(s.decisions) > len(items) {
				items = append(items[:n], make([]headers.Item, len(s.decisions))...)
			}
			n += s.show(items[n:])
		}
	}
	w.Write(r, items[:n])
}

// show writes those limits of s that are not private to items, in the form that package headers
// expects, and returns how many they are. It appends nothing, because that takes twice as long.
func (s *snapshot) show(items []headers.Item) (n int) {
	for i := range s.claims {
		c := &s.claims[i]
		if c.rule.Private {
			continue
		}
		partition, decisions := "", c.pick(s.decisions)
		if c.rule.PartitionKey != nil {
			partition = c.partition(s.front.o.Headers)
		}
		for j := range decisions {
			it := &items[n] // field by field, because copying the whole struct takes 6 ns
			it.Prepared, it.Decision, it.Replicas, it.PartitionKey = c.limits[j].fields, &decisions[j], int(s.replicas), partition
			n++
		}
	}
	return n
}

// KeepHeaders returns a handler for a reverse proxy inside a Limiter. Clients get the rate-limit
// fields that the Limiter has set, and none that the upstream has set, in any Dialect:
//
//	limiter.Handler(weir.KeepHeaders(&httputil.ReverseProxy{…}))
//
// Without KeepHeaders, an httputil.ReverseProxy sends both sets of fields. After an interim
// response from the upstream, such as 103, it sends only the upstream's fields, because it then
// deletes all fields that were set earlier. KeepHeaders restores the deleted fields. The upstream's
// Retry-After is not deleted. The ResponseWriter is wrapped as for a rule with Settle.
//
// If KeepHeaders is placed around a Limiter, it deletes that Limiter's own fields, and a warning is
// logged once to [slog.Default].
func KeepHeaders(proxy http.Handler) http.Handler {
	var around atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before := w.Header().Clone()
		own := headers.Delete(before)
		rec := &recorder.Recorder{ResponseWriter: w}
		rec.Final = func() {
			h := w.Header()
			if deleted := headers.Delete(h); len(deleted) > 0 && len(own) == 0 && snapshotOf(r.Context()) == nil && !around.Swap(true) {
				slog.Warn("weir: no Limiter around KeepHeaders", "effect", "clients get no rate-limit fields",
					"fix", "wrap them as limiter.Handler(weir.KeepHeaders(proxy)), not the reverse")
			}
			maps.Copy(h, own)
			for name, values := range before {
				if rec.Interim && h[name] == nil {
					h[name] = values
				}
			}
		}
		defer rec.Final()               // net/http sends the header later, or trailers that the proxy has declared
		inner, ctx := recorder.Inner(r) // see CarryBack
		defer recorder.CarryBack(r, inner, ctx)
		proxy.ServeHTTP(rec.Writer(), inner)
	})
}

// partition returns the result of a rule's PartitionKey function for the claim's key, or "" if the
// dialect has no field for partition keys.
func (c *claim) partition(d headers.Dialect) string {
	if d&headers.IETF == 0 {
		return ""
	}
	if key := c.rule.PartitionKey(c.key); len(key) <= storedkey.Max {
		return key
	}
	return ""
}

// retryAfter returns the wait of a refusal, plus the jitter of the rule that refused the request.
// After an error there is no such rule, and no jitter is added.
func (s *snapshot) retryAfter() time.Duration {
	wait := s.why.RetryAfter
	if wait == quota.Never || s.why.by == nil || s.why.by.RetryJitter == 0 {
		return wait
	}
	return wait + rand.N(s.why.by.RetryJitter+1)
}

// problem returns the answer to a refused request. The answer names the limits that refused the
// request. If there is only one, as usual, p is the prepared answer of that limit. If there are
// several, violated contains their names in JSON.
func (s *snapshot) problem() (p *answer.Problem, violated [][]byte) {
	switch s.why.Reason {
	case ReasonNoKey:
		return &answer.MissingKey, nil
	case ReasonError:
		return &answer.ReducedCapacity, nil
	case ReasonBan, ReasonDeny:
		return &s.why.by.abnormal, nil
	case ReasonLimit:
	default: // a handler has called Refuse for an admitted request
		return &answer.QuotaExceeded, nil
	}
	var one *limit // the last limit that is not private
	for i := range s.claims {
		c := &s.claims[i]
		decisions := c.pick(s.decisions)
		for j := range decisions {
			if decisions[j].Allowed || c.rule.Private {
				continue
			}
			if one != nil {
				violated = append(violated, one.json)
			}
			one = &c.limits[j]
		}
	}
	switch {
	case one == nil: // all limits that refuse the request are private
		return &s.why.by.exceeded, nil
	case violated == nil && !s.why.by.Private:
		return &one.problem, nil
	}
	return &s.why.by.exceeded, append(violated, one.json)
}

// Refuse is the default OnLimited handler. It responds with the Status of the rule that refused the
// request, which is 429 by default. The response body contains JSON problem details (RFC 9457), or
// text or HTML if the client prefers one of these. If the key is banned or denied, the problem type
// is abnormal-usage-detected. If a limit refused the request, the problem type is quota-exceeded,
// or temporary-reduced-capacity if the Status is 503. If a rule with NoKeyRefuse refused the
// request, the status is 400 and the problem type is about:blank, whatever the rule's Status. If no
// decision was possible and Options.OnError refused the request, the status is 503 and the problem
// type is temporary-reduced-capacity.
//
// Refuse recognizes gRPC, gRPC-Web and Connect clients by their Content-Type and sends them the
// corresponding error code. Status 400 becomes invalid_argument, 401 unauthenticated, 404 not_found
// and 503 unavailable. Status 403 becomes permission_denied, and so does status 429 if the key is
// denied. Any other status becomes resource_exhausted. If waiting helps, the response includes a
// google.rpc.RetryInfo.
func Refuse(w http.ResponseWriter, r *http.Request) {
	if s := snapshotOf(r.Context()); s != nil {
		refusal, violated := s.problem()
		refusal.Write(w, r, false, violated...)
		return
	}
	answer.QuotaExceeded.Write(w, r, false)
}

// RefuseJSON answers a refused request with a JSON encoding of body, and sets everything else that
// a refusal needs: the Refusal's Status, Cache-Control: no-store, Retry-After and the rate-limit
// fields. It is for OnLimited and for a RefusedError:
//
//	weir.FromContext(r.Context()).RefuseJSON(w, r, map[string]string{"error": "rate_limited"})
//
// For clients of gRPC, gRPC-Web and Connect, which do not read such a body, RefuseJSON calls
// Refuse. It also calls Refuse if body cannot be marshaled.
func (a *Admission) RefuseJSON(w http.ResponseWriter, r *http.Request, body any) {
	if ctx := a.Context(); ctx != nil {
		a.WriteHeaders(w.Header())
		r = r.WithContext(ctx)
	}
	text, err := json.Marshal(body)
	if err != nil || answer.ProtocolOf(r) != answer.HTTP {
		Refuse(w, r)
		return
	}
	status := answer.QuotaExceeded.Status
	if a != nil && a.Refusal.Status != 0 {
		status = a.Refusal.Status
	}
	answer.WriteJSON(w, status, append(text, '\n'))
}

// A Refusal describes why a request was refused. The zero Refusal means that the request
// was not refused.
//
// A Refusal is part of every Admission and every Event. It contains no key.
type Refusal struct {
	// Reason says what refused the request. It is ReasonBan if the key is banned, even if a limit
	// also refuses the request.
	Reason Reason

	// Rule is the name of the rule that refused the request for that Reason. If several rules
	// refused the request, it is the name of the rule with the longest wait.
	Rule string

	// RetryAfter is the time to wait until the request would be admitted, assuming that no other
	// request spends units in the meantime. It is the longest wait imposed by any limit or ban that
	// refuses the request. The Retry-After field also includes the rule's jitter. If the process
	// already knows of a ban, the store is not called, and RetryAfter is the remaining time of the
	// ban. RetryAfter is quota.Never for ReasonDeny and ReasonNoKey. For ReasonError, RetryAfter is
	// one second if the store is busy, and otherwise 0, because the wait is unknown.
	RetryAfter time.Duration

	// If the Reason is ReasonLimit, Limit is the Name of the limit with the longest wait, as in the
	// Charge under that limit. For other reasons, Limit is "".
	Limit string

	// Status is the status code that Refuse sends over HTTP. It is 400 for ReasonNoKey, 503 for
	// ReasonError, and otherwise the Status of the rule, or 429 if the rule has none.
	Status int
}

// A Reason is the reason why a request was refused.
type Reason uint8

const (
	ReasonLimit Reason = iota + 1 // a limit has too few units left for the request
	ReasonBan                     // a rule has banned the key: see Penalty
	ReasonDeny                    // the Policy of a rule is Denied
	ReasonError                   // no decision was possible: see Options.OnError
	ReasonPause                   // Transport has paused the key because the server asked for it
	ReasonNoKey                   // the request has no key, and the rule has NoKeyRefuse
)

// String returns "limit", "ban", "deny", "error", "pause" or "no-key", and "" for the zero
// Reason.
func (r Reason) String() string {
	if int(r) >= len(reasons) {
		return ""
	}
	return reasons[r]
}

var reasons = [...]string{"", "limit", "ban", "deny", "error", "pause", "no-key"}
