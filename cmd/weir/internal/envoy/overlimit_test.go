package envoy

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// remembering returns a service with Options.Over, and the number of calls of its store so far.
func remembering(t *testing.T, text string, store quota.Store, over int) (s *Service, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	counting := weirtest.StoreFunc(func(ctx context.Context, q *quota.Transaction) error {
		asked.Add(1)
		return store.Take(ctx, q)
	})
	s, err := NewService(counting, Options{Path: write(t, filepath.Join(t.TempDir(), "f.yaml"), text), Over: over, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s, asked
}

// answerTo calls the service without gRPC, and returns the answer as text.
func (s *Service) answerTo(t *testing.T, d *common.RateLimitDescriptor) string {
	t.Helper()
	resp, err := s.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{d}})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s, %v left", describe(t, resp), resp.Statuses[0].GetDurationUntilReset().AsDuration())
}

const twoAMinute = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 2}}]"

// TestOver: a count over its limit is remembered until its window ends, and no longer. Meanwhile
// the store is not called, and answers and metrics are as if it was.
func TestOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, asked := remembering(t, twoAMinute, memstore.New(memstore.Options{}), 10)
		time.Sleep(10 * time.Second) // a bubble begins at midnight
		look := descriptor("k=a")
		look.HitsAddend = wrapperspb.UInt64(0)
		for i, tt := range []struct {
			d     *common.RateLimitDescriptor
			want  string
			asked int64
			sleep time.Duration
		}{
			{descriptor("k=a"), "OK | OK 1/2 MINUTE, 50s left", 1, 0},
			{descriptor("k=a"), "OK | OK 0/2 MINUTE, 50s left", 2, 0},
			{descriptor("k=a"), "OVER_LIMIT | OVER_LIMIT 0/2 MINUTE, 50s left", 3, 0},
			{descriptor("k=a"), "OVER_LIMIT | OVER_LIMIT 0/2 MINUTE, 50s left", 3, 0},
			{look, "OVER_LIMIT | OVER_LIMIT 0/2 MINUTE, 50s left", 3, 49*time.Second + 500*time.Millisecond},
			{descriptor("k=a"), "OVER_LIMIT | OVER_LIMIT 0/2 MINUTE, 1s left", 3, 500 * time.Millisecond},
			{descriptor("k=a"), "OK | OK 1/2 MINUTE, 1m0s left", 4, 0},
			{descriptor("k=b"), "OK | OK 1/2 MINUTE, 1m0s left", 5, 0},
		} {
			if got := s.answerTo(t, tt.d); got != tt.want || asked.Load() != tt.asked {
				t.Errorf("%d: got %s after %d calls of the store, want %s after %d", i, got, asked.Load(), tt.want, tt.asked)
			}
			time.Sleep(tt.sleep)
		}
		m := s.config.Load().limits[0]
		if total, over, local := value(t, m.total), value(t, m.over), value(t, m.local); total != 7 || over != 3 || local != 2 {
			t.Errorf("got %d hits, %d over the limit, %d of them remembered; want 7, 3, 2", total, over, local)
		}
	})
}

// TestOverRaised: a remembered count refuses nothing that the limit of a changed file allows, and hits
// that are given back count.
func TestOverRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, asked := remembering(t, twoAMinute, memstore.New(memstore.Options{}), 10)
		back := descriptor("k=a")
		back.HitsAddend, back.IsNegativeHits = wrapperspb.UInt64(2), true
		for range 5 {
			s.answerTo(t, descriptor("k=a"))
		}
		if asked.Load() != 3 {
			t.Errorf("the store was asked %d times, want 3", asked.Load())
		}
		if got := s.answerTo(t, back); got != "OK | OK 1/2 MINUTE, 1m0s left" {
			t.Errorf("two hits given back: got %s", got)
		}
		for range 2 {
			s.answerTo(t, descriptor("k=a"))
		}
		write(t, s.o.Path, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 9}}]")
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"OK | OK 5/9 MINUTE, 1m0s left", "OK | OK 4/9 MINUTE, 1m0s left"} {
			if got := s.answerTo(t, descriptor("k=a")); got != want {
				t.Errorf("a raised limit: got %s, want %s", got, want)
			}
		}
	})
}

// TestOverBound: at most Options.Over counts are remembered, each in little memory. Without the
// option the store is always asked.
func TestOverBound(t *testing.T) {
	for _, max := range []int{0, 5} {
		s, _ := remembering(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 0}}]", memstore.New(memstore.Options{}), max)
		for i := range 100 {
			s.answerTo(t, descriptor(fmt.Sprintf("k=%0200d", i)))
		}
		switch {
		case max == 0:
			if s.over != nil {
				t.Error("counts are remembered without Options.Over")
			}
		case len(s.over.counters) != max:
			t.Errorf("%d counts are remembered, want %d", len(s.over.counters), max)
		default:
			for k := range s.over.counters {
				if len(k.key) > 128 {
					t.Errorf("a key of %d bytes is remembered", len(k.key))
				}
			}
		}
	}
}

// TestOverFails: nothing is remembered of a call that the store did not decide.
func TestOverFails(t *testing.T) {
	s, _ := remembering(t, twoAMinute, weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return quota.ErrBusy }), 5)
	resp, err := s.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "d", Descriptors: descriptors([]string{"k=a"})})
	if err != nil || resp.OverallCode != ratelimit.RateLimitResponse_OVER_LIMIT || len(s.over.counters) != 0 {
		t.Errorf("got %v, %v, and %d remembered counts; want OVER_LIMIT and none", resp, err, len(s.over.counters))
	}
}
