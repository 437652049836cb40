package watch_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/watch"
)

type discard struct{ h http.Header }

func (d discard) Header() http.Header       { return d.h }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

// BenchmarkHandler measures a request through a Limiter that nobody observes, and through one
// whose events a Recorder gets.
func BenchmarkHandler(b *testing.B) {
	all := watch.NewRecorder(1000, 100_000).Observe
	for _, bm := range []struct {
		name    string
		quota   int64
		observe func(weir.Event)
	}{
		{"allowed/alone", 1e9, nil}, {"allowed/watched", 1e9, all},
		{"refused/alone", 1, nil}, {"refused/watched", 1, all},
	} {
		b.Run(bm.name, func(b *testing.B) {
			limit := algorithms.GCRA(bm.quota, time.Hour)
			l := limiter(b, memstore.New(memstore.Options{}), bm.observe, weir.Rule{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{limit}})
			h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			r, w := httptest.NewRequest("GET", "/", nil), discard{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}
