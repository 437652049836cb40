package weir_test

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestKeptCharges: a Limiter reuses the memory of the charges of earlier requests. It still
// decides each request as a new Limiter would, whichever rules apply and whichever limits a
// key has, and also if a ban or a deny leaves out charges.
func TestKeptCharges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := map[string]weir.Policy{
			"large":   weir.Limited(algorithms.GCRA(50, time.Hour)),
			"several": weir.Limited(algorithms.GCRA(9, time.Minute).Named("a"), algorithms.FixedWindow(30, time.Hour).Named("b")),
		}
		limiter := func(store weir.Store, got *[]weir.Event) http.Handler {
			l, err := weir.New(store, weir.Options{
				Rules: []weir.Rule{
					{Name: "first", Key: weir.ByHeader("A"), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)},
						ForKey: func(key string) weir.Policy { return own[key] }},
					{Name: "second", Key: weir.ByHeader("B"), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)},
						ForKey: weir.When(func(key string) bool { return key == "denied" }, weir.Denied()), Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(3, time.Hour), Duration: time.Minute}},
					{Name: "third", Key: weir.ByHeader("C"), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)}},
				},
				Observe: func(e weir.Event) {
					e.Transaction = &quota.Transaction{Charges: append([]quota.Charge{}, e.Transaction.Charges...), Result: quota.Result{Decisions: append([]quota.Decision{}, e.Transaction.Decisions...)}}
					e.Request = nil
					*got = append(*got, e)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			return l.Handler(http.NotFoundHandler())
		}
		var got, want []weir.Event
		store := memstore.New(memstore.Options{})
		kept := limiter(memstore.New(memstore.Options{}), &got)
		keys := map[string][]string{"A": {"", "small", "large", "several"}, "B": {"", "", "x", "denied"}, "C": {"", "x", "y"}}
		r := rand.New(rand.NewPCG(1, 1))
		for i := range 5000 {
			req := httptest.NewRequest([]string{"GET", "GET", "OPTIONS"}[r.IntN(3)], "/", nil)
			if req.Method == "OPTIONS" {
				req.Header.Set("Origin", "https://example.com")
				req.Header.Set("Access-Control-Request-Method", "GET")
			}
			for _, name := range []string{"A", "B", "C"} {
				if key := keys[name][r.IntN(len(keys[name]))]; key != "" {
					req.Header.Set(name, key)
				}
			}
			time.Sleep(time.Duration(11+r.IntN(100)) * time.Second) // after 10 s a process asks the store about a ban again, as a new Limiter does
			got, want = nil, nil
			kept.ServeHTTP(httptest.NewRecorder(), req)
			limiter(store, &want).ServeHTTP(httptest.NewRecorder(), req)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("request %d, %s %v:\ngot  %+v\nwant %+v", i, req.Method, req.Header, got, want)
			}
		}
	})
}

// TestPoolKeepsNoKeys: a verdict in the pool keeps no key of a request alive, whether the request
// was admitted, refused by a limit, or denied after another rule had charged it.
func TestPoolKeepsNoKeys(t *testing.T) {
	for what, status := range map[string]int{"admitted": 200, "refused": 429, "denied": 429} {
		var rules []weir.Rule
		for _, name := range []string{"a", "b", "c"} {
			rules = append(rules, weir.Rule{Name: name, Key: weir.ByHeader("User"), PartitionKey: func(key string) string { return key }, Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}})
		}
		rules[2].ForKey = weir.When(func(string) bool { return what == "denied" }, weir.Denied())
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: rules, Headers: headers.IETF})
		if what == "refused" {
			do(l.Handler(served), ask("/", "", "User", "ann"))
		}
		for tries := 0; ; tries++ { // the race detector empties pools at random
			user := "ann"
			if what == "admitted" {
				user = strconv.Itoa(tries)
			}
			if got := do(l.Handler(served), ask("/", "", "User", user)).StatusCode; got != status {
				t.Fatalf("%s: got %d, want %d", what, got, status)
			}
			if keys, ok := l.PooledKeys(); ok {
				if got := strings.Join(keys, ""); got != "" {
					t.Errorf("%s: the pool keeps %q alive", what, got)
				}
				break
			} else if tries == 100 {
				t.Fatalf("%s: the pool stays empty", what)
			}
		}
	}
}
