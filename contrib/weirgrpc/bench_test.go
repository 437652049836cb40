package weirgrpc_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
)

// A nullWriter is a ResponseWriter that does nothing.
type nullWriter struct{ header http.Header }

func (w nullWriter) Header() http.Header       { return w.header }
func (nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (nullWriter) WriteHeader(int)             {}

// A transport is the server's side of a call, as far as an interceptor uses it.
type transport struct{ grpc.ServerTransportStream }

func (transport) SetHeader(metadata.MD) error  { return nil }
func (transport) SetTrailer(metadata.MD) error { return nil }

// byAddress returns a Limiter with a limit for each client address.
func byAddress(t testing.TB, quota int64) *weir.Limiter {
	return must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(quota, 1000*time.Hour)},
	}}})
}

// calls returns a function that makes a call without the network, allowed or refused.
func calls(t testing.TB, quota int64) func() error {
	intercept := unaryServer(byAddress(t, quota).Admit)
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1234}})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "localhost", "content-type", "application/grpc"))
	ctx = grpc.NewContextWithServerTransportStream(ctx, transport{})
	info := &grpc.UnaryServerInfo{Server: &service{}, FullMethod: "/a.Service/One"}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	intercept(ctx, nil, info, handler) // spends a quota of 1
	return func() error {
		_, err := intercept(ctx, nil, info, handler)
		return err
	}
}

var scenes = []struct {
	name   string
	quota  int64
	allocs float64 // at most
}{{"allowed", 1 << 40, 7}, {"refused", 1, 9}}

// TestAllocations: a call allocates little, of which two maps, the header and the fields, are four.
// The time stands still, because the fields of some seconds are not found in the cache of integers.
func TestAllocations(t *testing.T) {
	for _, s := range scenes {
		synctest.Test(t, func(t *testing.T) {
			call := calls(t, s.quota)
			if got := testing.AllocsPerRun(100, func() { call() }); got > s.allocs && !weirtest.Race {
				t.Errorf("%s: got %v allocations, want at most %v", s.name, got, s.allocs)
			}
		})
	}
}

// BenchmarkServer measures a call without the network, and a request to Handler beside it.
func BenchmarkServer(b *testing.B) {
	for _, s := range scenes {
		b.Run("Handler/"+s.name, func(b *testing.B) {
			h := byAddress(b, s.quota).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			w, r := nullWriter{http.Header{}}, httptest.NewRequest("GET", "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				clear(w.Header())
				h.ServeHTTP(w, r)
			}
		})
		b.Run(s.name, func(b *testing.B) {
			call := calls(b, s.quota)
			b.ReportAllocs()
			for b.Loop() {
				if err := call(); (err == nil) != (s.quota > 1) {
					b.Fatal(err)
				}
			}
		})
	}
}
