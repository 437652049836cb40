package weir_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
)

// TestSingle: a Limiter with a single limit answers, observes and passes on each request as
// serveGeneral does.
func TestSingle(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			o := singleOptions(rnd)
			single, general := newSide(t, o, rnd.IntN(4) == 0), newSide(t, o, false)
			if !weir.IsSingle(single.l) {
				t.Fatalf("seed %d: the Limiter is not single", seed)
			}
			general.outer = single.outer
			weir.Generalize(general.l)
			for i := range 150 {
				time.Sleep(time.Duration(rnd.Int64N(int64(500 * time.Millisecond))))
				r := singleRequest(rnd)
				if got, want := single.serve(r), general.serve(r); !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, request %d:\ngot  %+v\nwant %+v", seed, i, got, want)
				}
			}
		})
	}
}

// TestNotSingle: serveGeneral serves a Limiter with an option that serveSingle ignores.
func TestNotSingle(t *testing.T) {
	for name, change := range map[string]func(o *weir.Options, r *weir.Rule){
		"two limits": func(o *weir.Options, r *weir.Rule) {
			r.Limits = append(r.Limits, algorithms.GCRA(9, time.Hour))
		},
		"two rules": func(o *weir.Options, r *weir.Rule) {
			o.Rules = append(o.Rules, weir.Rule{Name: "b", Key: weir.Global(), Policy: func(*http.Request) weir.Policy { return weir.Unlimited() }})
		},
		"Policy": func(o *weir.Options, r *weir.Rule) {
			limits := r.Limits
			r.Limits, r.Policy = nil, func(*http.Request) weir.Policy { return weir.Limited(limits...) }
		},
		"Policy beside Limits": func(o *weir.Options, r *weir.Rule) {
			r.Policy = func(*http.Request) weir.Policy { return weir.Policy{} }
		},
		"ForKey":    func(o *weir.Options, r *weir.Rule) { r.ForKey = noPolicy },
		"in flight": func(o *weir.Options, r *weir.Rule) { r.Limits = []weir.Limit{algorithms.InFlight(3, time.Hour)} },
		"Settle":    func(o *weir.Options, r *weir.Rule) { r.Settle = func(o weir.Outcome) int64 { return 1 } },
		"Shadow":    func(o *weir.Options, r *weir.Rule) { r.Shadow = 0.5 },
		"Penalty": func(o *weir.Options, r *weir.Rule) {
			r.Penalty = &weir.Penalty{Strikes: algorithms.FixedWindow(3, time.Minute), Duration: time.Minute}
		},
		"MaxWait": func(o *weir.Options, r *weir.Rule) { o.MaxWait = time.Second },
	} {
		o := weir.Options{Rules: []weir.Rule{{Name: "a", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(3, time.Minute)}}}}
		change(&o, &o.Rules[0])
		if weir.IsSingle(must(t, memory(), o)) {
			t.Errorf("a Limiter with %s is single", name)
		}
	}
	foreign := storeFunc(memory().Take)
	if weir.IsSingle(must(t, foreign, weir.Options{Rules: []weir.Rule{{Name: "a", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(3, time.Minute)}}}})) {
		t.Error("a Limiter with a foreign store is single")
	}
}

// A side is one of two Limiters that get the same requests.
type side struct {
	l      *weir.Limiter
	outer  bool // the Limiter is inside another one
	seen   answered
	around func(http.Handler) http.Handler
}

// answered is what one request has caused.
type answered struct {
	status int
	header http.Header
	body   string
	calls  []string // of next, OnLimited, OnError and Observe
}

func newSide(t *testing.T, o weir.Options, outer bool) *side {
	s := &side{outer: outer}
	if o.OnLimited != nil {
		o.OnLimited = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.call("OnLimited", r.Context())
			weir.Refuse(w, r)
		})
	}
	if o.Observe != nil {
		o.Observe = func(e weir.Event) {
			text := fmt.Sprint("Observe ", e.Transaction.Charges, e.Refusal, e.Key, e.Err)
			if e.Err == nil {
				text += fmt.Sprint(e.Transaction.Decisions)
			}
			s.seen.calls = append(s.seen.calls, text)
		}
	}
	o.Logger = slog.New(slog.DiscardHandler)
	o.OnError = func(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
		s.call("OnError "+err.Error(), r.Context())
		next.ServeHTTP(w, r)
	}
	s.l = must(t, memstore.New(memstore.Options{MaxKeys: 1}), o) // it is full when 8 keys are refused
	s.around = weir.Middleware(memory(), "outer", weir.Global(), algorithms.GCRA(30, 10*time.Second))
	return s
}

func (s *side) call(name string, ctx context.Context) {
	text := name
	if tx := weir.FromContext(ctx); tx != nil {
		text += fmt.Sprint(tx.Charges, tx.Decisions, tx.At, tx.Wait, tx.Refusal)
	}
	s.seen.calls = append(s.seen.calls, text)
}

// ServeHTTP is the next handler.
func (s *side) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.call("next", r.Context())
	w.WriteHeader(http.StatusNoContent)
}

func (s *side) serve(r *http.Request) answered {
	s.seen = answered{}
	w, h := httptest.NewRecorder(), s.l.Handler(s)
	if s.outer {
		h = s.around(h)
	}
	if r.Method == http.MethodPut {
		w.Header().Set("Vary", "Origin") // of a handler before
	}
	h.ServeHTTP(w, r.Clone(r.Context()))
	s.seen.status, s.seen.header, s.seen.body = w.Code, w.Header(), w.Body.String()
	return s.seen
}

func singleOptions(rnd *rand.Rand) weir.Options {
	yes := func() bool { return rnd.IntN(3) == 0 }
	limits := []weir.Limit{
		algorithms.GCRA(5, 2*time.Second), algorithms.TokenBucket(3, 3, time.Second), algorithms.LeakyBucket(3, 3, time.Second),
		algorithms.FixedWindow(4, time.Second), algorithms.SlidingWindow(4, time.Second), algorithms.SlidingLog(4, time.Second),
	}
	rule := weir.Rule{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{limits[rnd.IntN(len(limits))]}}
	if yes() {
		rule.Limits[0] = algorithms.GCRA(1, time.Hour)
	}
	if yes() {
		rule.Limits[0].Name = "named"
	}
	if yes() {
		rule.Unit, rule.Status = "tokens", http.StatusServiceUnavailable
	}
	if yes() {
		rule.PartitionKey = func(key string) string { return key[:1] }
	}
	if yes() {
		rule.Cost = func(r *http.Request) int64 { return int64(len(r.URL.RawQuery)) - 1 }
	}
	dialects := []headers.Dialect{0, headers.IETF, headers.Draft07, headers.Draft06, headers.GitHub, headers.OpenAI | headers.Twitter, headers.Anthropic, headers.None}
	o := weir.Options{Rules: []weir.Rule{rule}, Headers: dialects[rnd.IntN(len(dialects))], ExposeHeaders: yes(), FreePreflight: yes(), NoFromContext: yes()}
	if yes() {
		o.OnLimited = http.NotFoundHandler()
	}
	if yes() {
		o.Observe = func(weir.Event) {}
	}
	return o
}

func singleRequest(rnd *rand.Rand) *http.Request {
	methods := []string{"GET", "GET", "PUT", "OPTIONS"}
	r := httptest.NewRequest(methods[rnd.IntN(len(methods))], []string{"/", "/?", "/?a", "/?ab"}[rnd.IntN(4)], nil)
	if rnd.IntN(8) > 0 {
		r.Header.Set("Key", strings.Repeat(string('a'+rune(rnd.IntN(12))), 1+199*rnd.IntN(2)))
	}
	if rnd.IntN(2) == 0 {
		r.Header.Set("Origin", "https://example.com")
		r.Header.Set("Access-Control-Request-Method", "PUT")
	}
	if rnd.IntN(4) == 0 {
		r.Header.Set("Accept", "text/html")
	}
	return r
}
