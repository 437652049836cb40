package weir_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// TestBanGivesBackOnce: a ban refuses a request that has reserved a turn and a unit in flight. The
// request gives its own unit back, and not that of a request with the same turn.
func TestBanGivesBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Second) // the window has begun
		store, flying := memory(), algorithms.InFlight(9, 10*time.Minute).Named("flying")
		limiter := func() *weir.Limiter {
			return must(t, store, weir.Options{MaxWait: 5 * time.Minute, Rules: []weir.Rule{
				{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Minute)},
					Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(9, time.Hour), Duration: time.Hour}},
				{Name: "all", Key: weir.Global(), Policy: func(*http.Request) weir.Policy { return weir.Limited(flying) }},
			}})
		}
		release := make(chan bool)
		h := limiter().Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		send := func(ip string) { go h.ServeHTTP(httptest.NewRecorder(), ask("/", ip+":4")); synctest.Wait() }
		held := func(when string, want int64) {
			t.Helper()
			if got := 9 - take(t, store, 0, quota.Charge{Rule: "all", Limit: flying}).Decisions[0].Remaining; got != want {
				t.Errorf("%s: got %d in flight, want %d", when, got, want)
			}
		}
		send("192.0.2.1")
		send("192.0.2.2")
		held("served", 2)
		send("192.0.2.1")
		ban(t, limiter(), "192.0.2.2", time.Hour) // by another process
		send("192.0.2.2")
		time.Sleep(time.Minute) // its turn has come
		held("banned", 3)
		time.Sleep(time.Minute)
		for range 3 {
			release <- true
		}
	})
}
