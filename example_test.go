package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// Refused requests below /v1/ get the body of that API, and all other refused requests get the
// answer of Refuse.
func ExampleRefuse() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
		OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/") {
				weir.FromContext(r.Context()).RefuseJSON(w, r, map[string]string{"error": "slow down"})
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
	// 429 application/json
	// 429 application/problem+json
}

// broken is a store that always fails.
type broken struct{}

func (broken) Take(context.Context, *quota.Transaction) error {
	return errors.New("connection refused")
}

// If the store fails, requests are answered with 503. This OnError also prints the class of
// the error.
func ExampleFailClosed() {
	limiter, err := weir.New(broken{}, weir.Options{
		Rules: []weir.Rule{{Name: "login", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(5, time.Minute)}}},
		OnError: func(r *http.Request, err error) error {
			fmt.Println(quota.Cause(err))
			return weir.FailClosed(r, err)
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

func ExampleRule_freePreflights() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
		FreePreflights: true,
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := limiter.Handler(http.NotFoundHandler())
	for _, method := range []string{http.MethodOptions, http.MethodPost} {
		r := httptest.NewRequest(method, "/", nil)
		r.Header.Set("Origin", "https://example.com")
		r.Header.Set("Access-Control-Request-Method", "POST")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(method, w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// OPTIONS 100
	// POST 99
}

// Each API key has a quota. A request without the field would not be limited, so it is refused. A
// client could also invent keys: check them before the limiter.
func ExampleByHeader() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-Api-Key"), NoKey: weir.NoKeyRefuse,
		Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)},
	}}})
	if err != nil {
		log.Fatal(err)
	}
	h := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, key := range []string{"k1", "k1", "k2", ""} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("X-Api-Key", key)
		h.ServeHTTP(w, r)
		fmt.Printf("%q %d\n", key, w.Code)
	}
	// Output:
	// "k1" 200
	// "k1" 429
	// "k2" 200
	// "" 400
}

// All clients share one quota. It protects what the server can do, and one client can use it up, so
// a second rule limits each client.
// Requests of low urgency leave 3 of 10 units to the others of their client.
func ExampleByUrgency() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(10, 1000*time.Hour)},
		Class: weir.ByUrgency(), Headroom: map[string]int{"5": 30, "6": 30, "7": 30},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := limiter.Handler(http.NotFoundHandler())
	admitted := map[string]int{}
	for _, priority := range []string{"u=7", "u=1"} {
		for range 10 {
			r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
			r.Header.Set("Priority", priority)
			if handler.ServeHTTP(w, r); w.Code != http.StatusTooManyRequests {
				admitted[priority]++
			}
		}
	}
	fmt.Println(admitted)
	// Output: map[u=1:3 u=7:7]
}

func ExampleGlobal() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
		{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(3, time.Hour)}},
		{Name: "client", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(2, time.Hour)}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	h := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, client := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.RemoteAddr = client + ":1234"
		h.ServeHTTP(w, r)
		fmt.Println(client, w.Code)
	}
	// Output:
	// 192.0.2.1 200
	// 192.0.2.1 200
	// 192.0.2.1 429
	// 192.0.2.2 200
	// 192.0.2.3 429
}

// A new limit is first tried out for all keys, and then enforced for more and more of them. A key
// for which it is enforced stays so.
func ExamplePercent() {
	for _, percent := range []float64{0, 10, 100} {
		rule := weir.Rule{Name: "api", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Hour)}, Enforce: weir.Percent(percent)}
		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}})
		if err != nil {
			panic(err)
		}
		h, refused := limiter.Handler(http.NotFoundHandler()), 0
		for i := range 2000 { // two requests of each of 1000 users
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X-User", fmt.Sprint("user-", i%1000))
			if h.ServeHTTP(w, r); w.Code == http.StatusTooManyRequests {
				refused++
			}
		}
		fmt.Println("enforced for", rule.Enforce, "refused about", (refused+25)/50*50, rule.Enforce.Percent() == percent)
	}
	// Output:
	// enforced for 0% refused about 0 true
	// enforced for 10% refused about 100 true
	// enforced for 100% refused about 1000 true
}

// A program that charges a store itself can find out for which keys a rule is enforced.
func ExampleEnforcement_Enforces() {
	for _, percent := range []float64{10, 50, 100} {
		fmt.Println(weir.Percent(percent).Enforces("api", "user-1"), weir.Percent(percent).Enforces("api", "user-2"))
	}
	// Output:
	// false false
	// true false
	// true true
}

type account struct{}

// authenticate finds the account of a request. In a program it checks the password, too.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := r.BasicAuth()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), account{}, name)))
	})
}

// Every account may send two requests an hour, and all accounts together 1000 a second. A request
// that the limit of an account refuses spends nothing of what all accounts share.
func Example() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
		{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}},
		{Name: "account", Key: weir.ByContext(account{}), Limits: []weir.Limit{algorithms.GCRA(2, time.Hour)}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	items := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decisions := weir.FromContext(r.Context()).Decisions // one for each limit, in the order of the rules
		fmt.Fprintln(w, decisions[1].Remaining, "requests left")
	})
	handler := authenticate(limiter.Handler(items)) // with chi: r.Use(authenticate, limiter.Handler)

	for _, name := range []string{"ada", "ada", "ada", "bob"} {
		r, w := httptest.NewRequest("GET", "/items", nil), httptest.NewRecorder()
		r.SetBasicAuth(name, "secret")
		handler.ServeHTTP(w, r)
		if w.Code == http.StatusTooManyRequests {
			fmt.Println(name, "is refused")
			continue
		}
		fmt.Print(name, ": ", w.Body)
	}
	// Output:
	// ada: 1 requests left
	// ada: 0 requests left
	// ada is refused
	// bob: 1 requests left
}
