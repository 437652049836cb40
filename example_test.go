package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// Refused requests below /v1/ get a short text, and all other refused requests get the
// answer of Refuse.
func ExampleRefuse() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
		OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/") {
				http.Error(w, "slow down", http.StatusTooManyRequests)
				return
			}
			weir.Refuse(w, r)
		}),
	})
	if err != nil {
		log.Fatal(err)
	}
	h := limiter.Handler(http.NotFoundHandler())
	for _, path := range []string{"/", "/v1/items", "/v2/items"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Println(w.Code, w.Header().Get("Content-Type"))
	}
	// Output:
	// 404 text/plain; charset=utf-8
	// 429 text/plain; charset=utf-8
	// 429 application/problem+json
}

// broken is a store that always fails.
type broken struct{}

func (broken) Take(context.Context, *weir.Transaction) error { return errors.New("connection refused") }

// If the store fails, requests are answered with 503. This OnError also prints the class of
// the error.
func ExampleFailClosed() {
	limiter, err := weir.New(broken{}, weir.Options{
		Rules: []weir.Rule{{Name: "login", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(5, time.Minute)}}},
		OnError: func(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
			fmt.Println(weir.Cause(err))
			weir.FailClosed(w, r, next, err)
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	w := httptest.NewRecorder()
	limiter.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("POST", "/login", nil))
	fmt.Println(w.Code)
	// Output:
	// error
	// 503
}

// A request that ends in a 5xx costs the client nothing.
func ExampleRefundErrors() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(2, time.Hour)},
		Settle: weir.RefundErrors,
	}}})
	if err != nil {
		log.Fatal(err)
	}
	status := http.StatusBadGateway
	h := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }))
	for _, status = range []int{502, 502, 502, 200, 200, 200} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Print(w.Code, " ")
	}
	// Output: 502 502 502 200 200 429
}

// Stores keep a digest in place of a long key.
func ExampleCharge_StoredKey() {
	short := weir.Charge{Key: "192.0.2.1"}
	fmt.Println(short.StoredKey())
	long := weir.Charge{Key: strings.Repeat("long", 1000)}
	fmt.Println(long.StoredKey())
	// Output:
	// 192.0.2.1
	// sha256:WfHWZvzl2U5qMiXLkq1ySpXkPRO5Yh3pj0Q-cwo0YQU
}

// Counts are stored under the name of a limit. The period names a limit without a name.
func ExampleLimit_StoredName() {
	limit := algorithms.GCRA(100, 90*time.Second)
	fmt.Println(limit.StoredName())
	limit = limit.Named("burst")
	fmt.Println(limit.StoredName())
	// Output:
	// 90s
	// burst
}

func ExampleLimit_Validate() {
	fmt.Println(algorithms.GCRA(100, time.Minute).Validate())
	fmt.Println(algorithms.GCRA(0, time.Minute).Named("burst").Validate())
	// Output:
	// <nil>
	// weir: limit "burst": quota 0 is below 1
}

// A Store calls Validate first, which returns an error if no store can decide the
// transaction.
func ExampleTransaction_Validate() {
	charge := weir.Charge{Rule: "api", Key: "ada", Limit: algorithms.GCRA(100, time.Minute), Cost: 1}
	t := weir.Transaction{Charges: []weir.Charge{charge, charge}}
	fmt.Println(errors.Is(t.Validate(), weir.ErrDuplicate))
	// Output: true
}

func ExampleTransaction_Plan() {
	limit := algorithms.GCRA(100, time.Minute)
	t := weir.Transaction{Charges: []weir.Charge{
		{Rule: "api", Key: "192.0.2.1", Limit: limit}, {Rule: "api", Key: "192.0.2.2", Limit: limit},
	}}
	if err := t.Validate(); err != nil {
		fmt.Println(err)
	}
	p, q := t.Plan(0), t.Plan(1)
	fmt.Println("the names of both are the same:", p.Names == q.Names)
	fmt.Printf("%d units at once, each free again after %d µs\n", p.Size, p.Unit/p.Rate)
	// Output:
	// the names of both are the same: true
	// 100 units at once, each free again after 600000 µs
}

// The beginning of an outage is logged once, with its cause. Stats counts what the secondary
// decides.
func ExampleFallbackStore() {
	text := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	store := weir.Fallback(broken{}, memstore.New(memstore.Options{}))
	store.Logger = slog.New(text)
	for range 2 {
		d, err := weir.Allow(context.Background(), store, weir.Charge{Rule: "mail", Key: "ada", Limit: algorithms.GCRA(2, time.Hour), Cost: 1})
		fmt.Println(d.Allowed, err)
	}
	fmt.Printf("%+v\n", store.Stats())
	// Output:
	// level=WARN msg="weir: the primary store fails: the secondary decides" cause=error err="connection refused"
	// true <nil>
	// true <nil>
	// {Active:true Decided:map[busy:0 error:2 full:0 open:0 timeout:0 unusable:0]}
}
