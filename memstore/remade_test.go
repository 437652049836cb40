package memstore_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestRemade: New warns once if a handler makes a store for each request, so that every
// request passes.
func TestRemade(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	memstore.ForgetMade()
	defer memstore.ForgetMade()
	passed := 0
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charge := quota.Charge{Rule: "api", Limit: algorithms.GCRA(20, time.Minute), Cost: 1}
		if d, _ := quota.Allow(r.Context(), memstore.New(memstore.Options{}), charge); d.Allowed {
			passed++
		}
	})
	for range 100 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	if got := strings.Count(log.String(), "memstore: stores made again and again by a handler"); got != 1 || passed != 100 {
		t.Errorf("got %d warnings after %d requests have passed, want 1 after 100: %s", got, passed, &log)
	}
}
