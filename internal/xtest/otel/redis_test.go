// Package otel_test tests weirotel.Trace with a real Redis, whose client is traced by redisotel of
// go-redis.
package otel_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/ops/weirotel"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

const secret = "alice@example.com"

// A traced Redis is a client that redisotel traces, with the spans of all who use the tracer.
type traced struct {
	*tracetest.SpanRecorder
	*redistest.Proc
	rdb    redis.UniversalClient
	tracer trace.Tracer
}

func start(t *testing.T, processors ...sdktrace.SpanProcessor) *traced {
	server := redistest.Server(t)
	r := &traced{SpanRecorder: tracetest.NewSpanRecorder(), Proc: server, rdb: redis.NewUniversalClient(redisstore.ClientOptions(timeout, server.Addr()))}
	t.Cleanup(func() { r.rdb.Close() })
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))
	for _, p := range processors {
		provider.RegisterSpanProcessor(p)
	}
	r.tracer = provider.Tracer("test")
	if err := redisotel.InstrumentTracing(r.rdb, redisotel.WithTracerProvider(provider), redisotel.WithDBStatement(false), redisotel.WithDialFilter(true)); err != nil {
		t.Fatal(err)
	}
	return r
}

const timeout = 10 * time.Second

// request sends a request of a key to a handler, below a span as that of otelhttp, which it returns.
func (r *traced) request(h http.Handler, key string) sdktrace.ReadOnlySpan {
	ctx, span := r.tracer.Start(context.Background(), "GET /")
	req := httptest.NewRequest("GET", "/", nil).WithContext(ctx)
	req.Header.Set("Key", key)
	h.ServeHTTP(httptest.NewRecorder(), req)
	span.End()
	return span.(sdktrace.ReadOnlySpan)
}

func (r *traced) handler(t *testing.T, store weir.Store) http.Handler {
	return weirtest.New(t, weirotel.Trace(r.tracer, store), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.GCRA(1000, time.Minute)},
	}}}).Handler(http.NotFoundHandler())
}

// spans returns the spans of redisotel, and those of Weir by their ids. It checks that no span
// has a key.
func (r *traced) spans(t *testing.T) (ofRedis []sdktrace.ReadOnlySpan, ofWeir map[trace.SpanID]sdktrace.ReadOnlySpan) {
	ofWeir = map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, span := range r.Ended() {
		if s := fmt.Sprint(span.Name(), span.Attributes(), span.Events(), span.Status()); strings.Contains(s, secret) {
			t.Errorf("a span has a key: %s", s)
		}
		switch {
		case strings.HasPrefix(span.Name(), "weir."):
			ofWeir[span.SpanContext().SpanID()] = span
		case strings.Contains(span.Name(), "eval"):
			ofRedis = append(ofRedis, span)
		}
	}
	return ofRedis, ofWeir
}

// TestNested: below the span of each request is that of the decision, and below that the script in
// Redis, through all stores of a stack.
func TestNested(t *testing.T) {
	r := start(t)
	store, err := stack.New(r.rdb, stack.Options{Replicas: 1, Redis: redisstore.Options{Timeout: timeout}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	h := r.handler(t, store)
	for range 40 { // the queue needs 16 to send them on the goroutine of the caller
		r.Reset()
		request := r.request(h, secret)
		ofRedis, ofWeir := r.spans(t)
		ofRedis = slices.DeleteFunc(ofRedis, func(script sdktrace.ReadOnlySpan) bool { // of the check that the stack makes at start
			return script.SpanContext().TraceID() != request.SpanContext().TraceID()
		})
		if len(ofWeir) != 1 || len(ofRedis) == 0 {
			t.Fatalf("got %d spans of Weir and %d of Redis in the trace of the request", len(ofWeir), len(ofRedis))
		}
		for id, span := range ofWeir {
			if span.Parent().SpanID() != request.SpanContext().SpanID() {
				t.Error("the span of Weir is not below that of the request")
			}
			for _, script := range ofRedis {
				if script.Parent().SpanID() != id {
					t.Errorf("the span %s is not below that of Weir", script.Name())
				}
			}
		}
	}
}

// TestSharedCalls: if requests share calls, in the queue of redisstore or by Coalesce, each span of
// a decision has a script below it, or a link to one that has.
func TestSharedCalls(t *testing.T) {
	for name, around := range map[string]func(quota.Store) quota.Store{
		"queue":    func(s quota.Store) quota.Store { return s },
		"Coalesce": func(s quota.Store) quota.Store { return quota.Coalesce(s) },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			shared, err := redisstore.New(r.rdb, redisstore.Options{Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			h := r.handler(t, around(shared))
			r.request(h, secret) // loads the script
			links := 0
			for range 50 {
				r.Reset()
				r.Pause()
				time.AfterFunc(50*time.Millisecond, r.Resume)
				weirtest.Together(100, func(i int) { r.request(h, fmt.Sprint(secret, i%4)) })
				links += checkLinks(t, r)
				if links > 0 {
					break
				}
			}
			if links == 0 {
				t.Error("no requests have shared a call")
			}
		})
	}
}

// checkLinks checks that each span of Weir leads to a script, and returns how many do by a link.
func checkLinks(t *testing.T, r *traced) (links int) {
	ofRedis, ofWeir := r.spans(t)
	leads := map[trace.SpanID]bool{}
	for _, script := range ofRedis {
		if leads[script.Parent().SpanID()] = true; ofWeir[script.Parent().SpanID()] == nil {
			t.Errorf("%s has no parent of Weir", script.Name())
		}
	}
	if len(ofWeir) != 100 {
		t.Errorf("got %d spans of Weir, want 100", len(ofWeir))
	}
	leadsTo := func(span sdktrace.ReadOnlySpan) bool { return leads[span.SpanContext().SpanID()] }
	for _, span := range ofWeir {
		for at := span; !leadsTo(at); links++ {
			to := at.Links()
			if len(to) == 0 {
				t.Fatal("a span has no script below it, and no link")
			}
			if at = ofWeir[to[len(to)-1].SpanContext.SpanID()]; at == nil {
				t.Fatal("a link leads to no span of Weir")
			}
		}
	}
	return links
}

// blocking is a span processor that blocks when a span of Redis ends.
type blocking struct{ until chan struct{} }

func (blocking) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (blocking) Shutdown(context.Context) error                  { return nil }
func (blocking) ForceFlush(context.Context) error                { return nil }
func (b blocking) OnEnd(span sdktrace.ReadOnlySpan) {
	if !strings.HasPrefix(span.Name(), "weir.") {
		<-b.until
	}
}

// TestBlockedSpansOfRedis: if a span processor blocks the goroutines of the queue, the store still
// answers within its timeout.
func TestBlockedSpansOfRedis(t *testing.T) {
	until := make(chan struct{})
	r := start(t, blocking{until})
	defer close(until)
	const timeout = 50 * time.Millisecond
	shared, err := redisstore.New(r.rdb, redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	store := weirotel.Trace(r.tracer, shared)
	done := make(chan struct{})
	go func() {
		defer close(done)
		weirtest.Together(200, func(i int) {
			ctx, span := r.tracer.Start(context.Background(), "weir.test")
			defer span.End()
			store.Take(ctx, weirtest.Once(algorithms.GCRA(1000, time.Minute)))
		})
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("a call of the store has not returned after a minute, want 50 ms")
	}
}
