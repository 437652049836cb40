package scene

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
)

// TestOutage sends 30 requests to three replicas while the store works and while it is down.
func TestOutage(t *testing.T) {
	for policy, want := range map[string]int{"open": 30, "closed": 0, "memory": 9} { // a third of 10 for each replica, rounded down
		synctest.Test(t, func(t *testing.T) {
			o := NewOutage(3, policy)
			passed := func() (n int) {
				for i := range 30 {
					status, asked := o.Request(i % 3)
					if status == 200 {
						n++
					}
					if asked == o.store.down {
						t.Errorf("%s: the store decided: %v", policy, asked)
					}
				}
				return n
			}
			if got := passed(); got != 10 {
				t.Errorf("%s: with the store %d passed, want 10", policy, got)
			}
			time.Sleep(10 * time.Second)
			o.Stop(true)
			if got := passed(); got != want {
				t.Errorf("%s: without the store %d passed, want %d", policy, got, want)
			}
			time.Sleep(10 * time.Second)
			o.Stop(false)
			if got := passed(); got < 10 || got > 20 {
				t.Errorf("%s: with the store again %d passed, want 10", policy, got)
			}
		})
	}
}

// TestOutageAsLimiter: an Outage answers as Limiters in front of the same stores do, before, in and
// after an outage.
func TestOutageAsLimiter(t *testing.T) {
	for policy, onError := range map[string]func(*http.Request, error) error{"open": nil, "closed": weir.FailClosed, "memory": nil} {
		synctest.Test(t, func(t *testing.T) {
			const n = 3
			o, shared, limiters := NewOutage(n, policy), &stoppable{Store: memstore.New(memstore.Options{})}, []http.Handler(nil)
			for range n {
				l, err := weir.New(replica(shared, n, policy), weir.Options{OnError: onError, Logger: slog.New(slog.DiscardHandler),
					Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{outageLimit}}}})
				if err != nil {
					t.Fatal(err)
				}
				limiters = append(limiters, l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
			}
			for i := range 120 {
				shared.down = 40 <= i && i < 80
				o.Stop(shared.down)
				before, w := shared.n, httptest.NewRecorder()
				limiters[i%n].ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				if status, asked := o.Request(i % n); status != w.Code || asked != (shared.n > before) {
					t.Errorf("%s, request %d: got %d, %v; a Limiter answers %d, %v", policy, i, status, asked, w.Code, shared.n > before)
				}
				time.Sleep(200 * time.Millisecond)
			}
		})
	}
}
