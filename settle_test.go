package weir_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestSettle: Settle returns the final cost of a request, and the key is charged exactly
// that cost. The table has what is left of 100 units after one request of cost 10.
func TestSettle(t *testing.T) {
	hangUp := func(r *http.Request) { r.Context().Value(hangUpKey{}).(context.CancelFunc)() }
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }
	}
	used := func(o weir.Outcome) int64 { return o.Used }
	for _, tt := range []struct {
		name    string
		settle  func(weir.Outcome) int64
		handler http.HandlerFunc
		want    int64
	}{
		{"no settle", nil, answer(200), 90},
		{"failed login", weir.ChargeOnly(401, 403), answer(401), 90},
		{"login", weir.ChargeOnly(401, 403), answer(200), 100},
		{"login, implicit status", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }, 100},
		{"login, nothing written", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) {}, 100},
		{"early hints, then a failed login", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(103); w.WriteHeader(401) }, 90},
		{"login hung up on", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) { hangUp(r) }, 90},
		{"login panics", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, 90},
		{"our fault", weir.RefundErrors, answer(502), 100},
		{"not our fault", weir.RefundErrors, answer(404), 90},
		{"panics", weir.RefundErrors, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, 100},
		{"fails as its client hangs up", weir.RefundErrors, func(w http.ResponseWriter, r *http.Request) { hangUp(r); w.WriteHeader(502) }, 90},
		{"panics as its client hangs up", weir.RefundErrors, func(w http.ResponseWriter, r *http.Request) { hangUp(r); panic(http.ErrAbortHandler) }, 90},
		{"bytes", func(o weir.Outcome) int64 { return o.Bytes }, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "seven b") }, 93},
		{"tokens", used, func(w http.ResponseWriter, r *http.Request) {
			weir.ReportUsage(r.Context(), "requests", 1)
			weir.ReportUsage(r.Context(), "requests", 3)
		}, 96},
		{"more tokens than reserved", used, func(w http.ResponseWriter, r *http.Request) { weir.ReportUsage(r.Context(), "requests", 60) }, 40},
		{"more tokens than there are", used, func(w http.ResponseWriter, r *http.Request) { weir.ReportUsage(r.Context(), "requests", 1e9) }, 0},
		{"by a field", func(o weir.Outcome) int64 { fmt.Sscan(o.Header.Get("Cost"), &o.Cost); return o.Cost },
			func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Cost", "2"); w.WriteHeader(200) }, 98},
		{"negative", func(o weir.Outcome) int64 { return -5 }, answer(200), 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, limit := range []weir.Limit{algorithms.FixedWindow(100, 1000*time.Hour), algorithms.SlidingLog(100, time.Hour), algorithms.GCRA(100, 10_000*time.Hour)} {
				store := memstore.New(memstore.Options{})
				h := must(t, store, weir.Options{Rules: []weir.Rule{
					{Name: "other", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(7, 1000*time.Hour)}},
					{Name: "api", Key: weir.Global(), Limits: []weir.Limit{limit.Named("a"), limit.Named("b")}, ForKey: noPolicy,
						Cost: func(*http.Request) int64 { return 10 }, Settle: tt.settle},
				}}).Handler(tt.handler)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ctx = context.WithValue(ctx, hangUpKey{}, cancel)
				func() {
					defer func() { _ = recover() }()
					h.ServeHTTP(httptest.NewRecorder(), ask("/", "192.0.2.1:4").WithContext(ctx))
				}()
				look, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "api", Limit: limit.Named("a")}, quota.Charge{Rule: "api", Limit: limit.Named("b")},
					quota.Charge{Rule: "other", Limit: algorithms.FixedWindow(7, 1000*time.Hour)})
				if err != nil {
					t.Fatal(err)
				}
				for i, want := range []int64{tt.want, tt.want, 6} {
					if got := look.Decisions[i].Remaining; got != want {
						t.Errorf("%v: %s: got %d left, want %d", limit, look.Charges[i].Rule, got, want)
					}
				}
			}
		})
	}
}

type hangUpKey struct{}

// TestSettleConcurrently: with concurrent requests over TCP, panics and clients that hang
// up, no more units than the limit are reserved or spent at a time, and in the end exactly
// the final costs are spent.
func TestSettleConcurrently(t *testing.T) {
	const limit, clients, requests = 20, 16, 100
	store := memstore.New(memstore.Options{})
	charge := quota.Charge{Rule: "api", Limit: algorithms.FixedWindow(limit, 10_000*time.Hour)}
	// owed counts the units that handlers hold and the units that Settle has kept. It rises
	// after the store has spent a unit, and falls before the store gets a unit back.
	var owed, kept, most atomic.Int64
	mux := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{charge.Limit},
		Settle: func(o weir.Outcome) int64 {
			if o.Status == 401 {
				kept.Add(1)
				return 1
			}
			owed.Add(-1)
			return 0
		}}}}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := owed.Add(1)
		raise(&most, n)
		switch r.URL.Path {
		case "/fail":
			w.WriteHeader(401)
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/slow":
			<-r.Context().Done()
		}
	}))
	server := httptest.NewServer(mux)
	defer server.Close()
	paths := []string{"/ok", "/ok", "/panic", "/slow", "/ok", "/fail"}
	var failed atomic.Int64
	together(clients, func(c int) {
		for i := range requests {
			path, patience := paths[(c+i)%len(paths)], time.Minute
			if path == "/fail" && failed.Add(1) > limit/2 {
				path = "/ok"
			}
			if path == "/slow" {
				patience = 5 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+path, nil)
			if res, err := http.DefaultClient.Do(r); err == nil {
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			cancel()
		}
	})
	server.Close() // waits for handlers
	if most.Load() > limit {
		t.Errorf("got %d held and kept at once, want at most %d", most.Load(), limit)
	}
	look, err := quota.Peek(t.Context(), store, charge)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := limit-look.Decisions[0].Remaining, kept.Load(); got != want || want == 0 || owed.Load() != want {
		t.Errorf("got %d spent and %d held; want %d spent, one for each request that failed, and 0 held", got, owed.Load()-want, want)
	}
}

// raise sets most to n if n is larger.
func raise(most *atomic.Int64, n int64) {
	for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
	}
}

// TestSettleFails: if the store fails when the handler has returned, the whole Cost stays
// spent, and the response does not change.
func TestSettleFails(t *testing.T) {
	store := memstore.New(memstore.Options{})
	gone := false
	h := must(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if gone {
			return errors.New("gone")
		}
		return store.Take(ctx, tx)
	}), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(9, 1000*time.Hour)}, Settle: weir.ChargeOnly(401)}}}).
		Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { gone = true; w.WriteHeader(204) }))
	if res := do(h, ask("/", "192.0.2.1:4")); res.StatusCode != 204 {
		t.Errorf("got %d, want 204", res.StatusCode)
	}
	look, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "api", Limit: algorithms.FixedWindow(9, 1000*time.Hour)})
	if err != nil || look.Decisions[0].Remaining != 8 {
		t.Errorf("got %v, %v, want 8 left", look.Decisions, err)
	}
}

// TestSettleUnwraps: a handler behind Settle can flush by http.ResponseController.
func TestSettleUnwraps(t *testing.T) {
	h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}, Settle: weir.RefundErrors}}}).
		Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, ask("/", "192.0.2.1:4"))
	if !w.Flushed {
		t.Error("got nothing flushed")
	}
}

func ExampleOutcome() {
	login, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "login", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(2, time.Minute)},
		Settle: weir.ChargeOnly(http.StatusUnauthorized),
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := login.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "open sesame" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for _, word := range []string{"open sesame", "open sesame", "open barley", "open sesame", "open wheat", "open sesame"} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("Authorization", word)
		h.ServeHTTP(w, r)
		fmt.Println(word, w.Code)
	}
	// Output:
	// open sesame 200
	// open sesame 200
	// open barley 401
	// open sesame 200
	// open wheat 401
	// open sesame 429
}

func ExampleReportUsage() {
	model, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "model", Unit: "tokens", Key: weir.ByHeader("Authorization"), Limits: []weir.Limit{algorithms.TokenBucket(10_000, 1_000, time.Minute)},
		Cost:   func(*http.Request) int64 { return 4_000 }, // the most an answer may take
		Settle: func(o weir.Outcome) int64 { return o.Used },
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := model.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("left while it answers:", weir.FromContext(r.Context()).Decisions[0].Remaining)
		weir.ReportUsage(r.Context(), "tokens", 250)
	}))
	for range 2 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer 1")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// left while it answers: 6000
	// left while it answers: 5750
}
