package weirotel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/regions"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/internal/tally"
	"github.com/seed83679106/weir/ops/weirotel"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
	"github.com/seed83679106/weir/quota/storetest"
)

// secret is in each key of these tests.
const secret = "alice@example.com"

type storeFunc func(ctx context.Context, t *quota.Transaction) error

func (f storeFunc) Take(ctx context.Context, t *quota.Transaction) error { return f(ctx, t) }

func memory() weir.Store { return memstore.New(memstore.Options{}) }

// recorded returns a tracer and the recorder of its spans.
func recorded() (trace.Tracer, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test"), recorder
}

// parent returns a context with the span context of a caller elsewhere.
func parent(ctx context.Context, sampled bool) context.Context {
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.TraceFlags(0).WithSampled(sampled),
	}))
}

// text returns the name, the attributes and the status of a span.
func text(span sdktrace.ReadOnlySpan) string {
	parts := []string{}
	for _, kv := range span.Attributes() {
		parts = append(parts, fmt.Sprintf("%s=%v", strings.TrimPrefix(string(kv.Key), "weir."), kv.Value.AsInterface()))
	}
	slices.Sort(parts)
	return strings.TrimSpace(span.Name() + " " + strings.Join(parts, " ") + " " + span.Status().Description)
}

func charge(limit quota.Limit, cost int64) quota.Charge {
	return quota.Charge{Rule: "api", Key: secret, Limit: limit, Cost: cost}
}

// TestTrace: each call is a span below that of the caller, which says what was decided and why.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		few, many := algorithms.FixedWindow(2, 1000*time.Hour).Named("few"), algorithms.GCRA(60, time.Minute)
		fails := storeFunc(func(context.Context, *quota.Transaction) error { return fmt.Errorf("redis: %w", quota.ErrBusy) })
		answers := func(decisions ...quota.Decision) storeFunc {
			return func(_ context.Context, t *quota.Transaction) error {
				t.Decisions = decisions
				return nil
			}
		}
		broken := storeFunc(func(context.Context, *quota.Transaction) error { panic("broken") })
		for _, tt := range []struct {
			store weir.Store
			ask   quota.Transaction
			want  string
		}{
			{memory(), quota.Transaction{Charges: []quota.Charge{charge(many, 1), charge(few, 1)}},
				"weir.decide charges=2 limit=few outcome=allowed remaining=1 rule=api store=*memstore.Store"},
			{memory(), quota.Transaction{Charges: []quota.Charge{charge(few, 0), charge(many, 1)}},
				"weir.decide charges=2 limit=1m outcome=allowed remaining=59 rule=api store=*memstore.Store"},
			{memory(), quota.Transaction{Charges: []quota.Charge{charge(few, 1), charge(many, 70)}},
				"weir.decide charges=2 limit=1m outcome=refused remaining=60 rule=api store=*memstore.Store"},
			{memory(), quota.Transaction{Charges: []quota.Charge{charge(algorithms.GCRA(1, time.Second), 1), charge(many, 61)}, Within: time.Minute},
				"weir.decide charges=2 limit=1m outcome=refused remaining=60 rule=api store=*memstore.Store"},
			{memory(), quota.Transaction{Charges: []quota.Charge{charge(many, 60)}, Mode: quota.ModePeek},
				"weir.peek charges=1 limit=1m outcome=allowed remaining=60 rule=api store=*memstore.Store"},
			{memory(), quota.Transaction{Charges: []quota.Charge{charge(many, 70)}, Mode: quota.ModeForce},
				"weir.force charges=1 limit=1m outcome=allowed remaining=0 rule=api store=*memstore.Store"},
			{memory(), quota.Transaction{Charges: []quota.Charge{charge(many, -1)}},
				"weir.refund charges=1 limit=1m outcome=allowed remaining=60 rule=api store=*memstore.Store"},
			{memory(), quota.Transaction{Charges: []quota.Charge{charge(many, 1)}, Mode: quota.ModeForget},
				"weir.forget charges=1 limit=1m outcome=allowed remaining=60 rule=api store=*memstore.Store"},
			{memory(), quota.Transaction{}, "weir.decide charges=0 outcome=allowed store=*memstore.Store"},
			{answers(quota.Decision{Allowed: true}, quota.Decision{RetryAfter: time.Second, Remaining: 3}, quota.Decision{RetryAfter: 2 * time.Second, Remaining: -1}),
				quota.Transaction{Charges: []quota.Charge{charge(few, 1), charge(many, 1), charge(few.Named("new"), 1)}},
				"weir.decide charges=3 limit=new outcome=refused retry_after=2 rule=api store=weirotel_test.storeFunc"},
			{answers(quota.Decision{Allowed: true, Remaining: -1}, quota.Decision{Allowed: true, Remaining: 5}),
				quota.Transaction{Charges: []quota.Charge{charge(few, 1), charge(many, 1)}},
				"weir.decide charges=2 limit=1m outcome=allowed remaining=5 rule=api store=weirotel_test.storeFunc"},
			{fails, quota.Transaction{Charges: []quota.Charge{charge(many, 1)}},
				"weir.decide error.type=busy outcome=error store=weirotel_test.storeFunc redis: " + quota.ErrBusy.Error()},
			{broken, quota.Transaction{Charges: []quota.Charge{charge(many, 1)}},
				"weir.decide error.type=error outcome=error store=weirotel_test.storeFunc the store panicked"},
			{quota.Fallback(fails, memory(), quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)}), quota.Transaction{Charges: []quota.Charge{charge(many, 1)}},
				"weir.decide charges=1 fallback=busy limit=1m outcome=allowed remaining=59 rule=api store=*quota.FallbackStore"},
		} {
			tracer, recorder := recorded()
			func() {
				defer func() { _ = recover() }() // of the store that is broken
				weirotel.Trace(tracer, tt.store).Take(parent(t.Context(), true), &tt.ask)
			}()
			spans := recorder.Ended()
			if len(spans) != 1 {
				t.Fatalf("got %d spans, want %q", len(spans), tt.want)
			}
			if text(spans[0]) != tt.want || spans[0].Parent().SpanID() != (trace.SpanID{2}) {
				t.Errorf("got %q below %v, want %q", text(spans[0]), spans[0].Parent().SpanID(), tt.want)
			}
		}

		// A refusal and a delay, and what the caller sees.
		tracer, recorder := recorded()
		store := weirotel.Trace(tracer, memory())
		for _, within := range []time.Duration{0, 0, time.Minute} {
			store.Take(parent(t.Context(), true), &quota.Transaction{Charges: []quota.Charge{charge(algorithms.GCRA(1, 10*time.Second), 1)}, Within: within})
		}
		for i, want := range []string{
			"weir.decide charges=1 limit=10s outcome=allowed remaining=0 rule=api store=*memstore.Store",
			"weir.decide charges=1 limit=10s outcome=refused remaining=0 retry_after=10 rule=api store=*memstore.Store",
			"weir.decide charges=1 limit=10s outcome=delayed remaining=0 rule=api store=*memstore.Store wait=10",
		} {
			if got := text(recorder.Ended()[i]); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

// TestTraceConforms: the store decides as the store in it does.
func TestTraceConforms(t *testing.T) {
	storetest.Run(t, func(*testing.T) quota.Store {
		tracer, _ := recorded()
		store := weirotel.Trace(tracer, memory())
		return storeFunc(func(ctx context.Context, tx *quota.Transaction) error { return store.Take(parent(ctx, true), tx) })
	})
}

// TestUntraced: without a span that is sampled, a call is no span and allocates nothing.
func TestUntraced(t *testing.T) {
	tracer, recorder := recorded()
	store := weirotel.Trace(tracer, memory())
	tx := quota.Transaction{Charges: []quota.Charge{charge(algorithms.GCRA(60, time.Minute), 1)}}
	for name, ctx := range map[string]context.Context{"no span": t.Context(), "not sampled": parent(t.Context(), false)} {
		if n := testing.AllocsPerRun(100, func() { store.Take(ctx, &tx) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := len(recorder.Started()); n != 0 {
		t.Errorf("got %d spans, want none", n)
	}
}

// A slow store takes a second for a call, and says in which context it is called.
type slow struct {
	memory *memstore.Store
	called chan context.Context
}

func (s slow) Take(ctx context.Context, t *quota.Transaction) error {
	s.called <- ctx
	time.Sleep(time.Second)
	return s.memory.Take(ctx, t)
}

func (s slow) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	s.called <- ctx
	time.Sleep(time.Second)
	return s.memory.TakeEach(ctx, ts)
}

// TestShared: a call that Coalesce makes for several requests has the span of one of them in its
// context, and the other spans have a link to it. A request that is not sampled changes nothing.
// Without any that is sampled, the call has no values.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, recorder := recorded()
		behind := slow{memstore.New(memstore.Options{}), make(chan context.Context, 10)}
		store := weirotel.Trace(tracer, quota.Coalesce(behind))
		take := func(ctx context.Context) {
			tx := quota.Transaction{Charges: []quota.Charge{charge(algorithms.GCRA(60, time.Minute), 1)}}
			if err := store.Take(ctx, &tx); err != nil {
				t.Error(err)
			}
		}
		type name struct{}
		round := func(sampled ...bool) (shared context.Context) {
			recorder.Reset()
			for range 4 { // the others share the next call
				go take(context.WithValue(t.Context(), name{}, "alone"))
				synctest.Wait()
				<-behind.called
			}
			for _, sampled := range sampled {
				ctx, cancel := context.WithTimeout(parent(context.WithValue(t.Context(), name{}, "shares"), sampled), time.Minute)
				defer cancel()
				go take(ctx)
				synctest.Wait()
			}
			time.Sleep(3 * time.Second)
			return <-behind.called
		}
		shared := round(false, true, false, true, true)
		leader := trace.SpanContextFromContext(shared).SpanID()
		links := 0
		for _, span := range recorder.Ended() {
			switch {
			case span.SpanContext().SpanID() == leader:
				if len(span.Links()) != 0 {
					t.Error("the span of the shared call's parent has a link")
				}
			case len(span.Links()) == 1 && span.Links()[0].SpanContext.SpanID() == leader:
				links++
			default:
				t.Errorf("got links %v, want one to %v", span.Links(), leader)
			}
		}
		if len(recorder.Ended()) != 3 || links != 2 {
			t.Errorf("got %d spans and %d links, want 3 and 2", len(recorder.Ended()), links)
		}
		if _, ok := shared.Deadline(); ok || shared.Done() != nil {
			t.Error("the shared call ends with a caller")
		}
		if shared := round(false, false); shared.Value(name{}) != nil || trace.SpanContextFromContext(shared).IsValid() {
			t.Errorf("got %v, want no values", shared)
		}
		if shared := round(false, true); !trace.SpanContextFromContext(shared).IsSampled() || len(recorder.Ended()) != 1 || len(recorder.Ended()[0].Links()) != 0 {
			t.Errorf("got %v, want the span of the one request", shared)
		}
	})
}

// A panicking tracer panics in Start, or its spans panic in all methods but those of reading.
type panicking struct {
	trace.Tracer
	start bool
}

func (p panicking) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	if p.start {
		panic("start")
	}
	return ctx, panickingSpan{trace.SpanFromContext(ctx)}
}

type panickingSpan struct{ trace.Span }

func (panickingSpan) IsRecording() bool          { panic("recording") }
func (panickingSpan) AddLink(trace.Link)         { panic("link") }
func (panickingSpan) End(...trace.SpanEndOption) { panic("end") }

// TestTracerPanics: if the tracer panics, requests are decided all the same, also those that share
// a call on a goroutine of Coalesce. The panics are reported once a second.
func TestTracerPanics(t *testing.T) {
	defer otel.SetErrorHandler(otel.GetErrorHandler())
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var reported []string
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, err.Error())
		}))
		for _, start := range []bool{true, false} {
			reported = nil
			behind := slow{memstore.New(memstore.Options{}), make(chan context.Context, 100)}
			store := weirotel.Trace(panicking{start: start}, quota.Coalesce(behind))
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					tx := quota.Transaction{Charges: []quota.Charge{charge(algorithms.GCRA(60, time.Minute), 1)}}
					if err := store.Take(parent(t.Context(), true), &tx); err != nil || !tx.Allowed() {
						t.Errorf("start %v: got error %v, want a decision", start, err)
					}
				})
			}
			all.Wait() // 2 s
			if n := len(reported); n < 1 || n > 3 || !strings.Contains(reported[0], "weirotel: the tracer panicked: ") {
				t.Errorf("start %v: got %q, want a line a second", start, reported)
			}
		}
	})
}

// blocking is a span processor that blocks when a span ends.
type blocking struct{ until chan struct{} }

func (b blocking) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (b blocking) OnEnd(sdktrace.ReadOnlySpan)                     { <-b.until }
func (b blocking) Shutdown(context.Context) error                  { return nil }
func (b blocking) ForceFlush(context.Context) error                { return nil }

// TestBlockedProcessor: a span processor that blocks delays only the requests that are sampled,
// even those that share a call with others.
func TestBlockedProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(blocking{until})).Tracer("test")
		store := weirotel.Trace(tracer, quota.Coalesce(slow{memstore.New(memstore.Options{}), make(chan context.Context, 100)}))
		var mu sync.Mutex
		ended := map[bool]int{}
		for i := range 40 {
			go func() {
				tx := quota.Transaction{Charges: []quota.Charge{charge(algorithms.GCRA(60, time.Minute), 1)}}
				store.Take(parent(t.Context(), i%2 == 0), &tx)
				mu.Lock()
				defer mu.Unlock()
				ended[i%2 == 0]++
			}()
		}
		time.Sleep(5 * time.Second)
		mu.Lock()
		if ended[true] != 0 || ended[false] != 20 {
			t.Errorf("got %v, want only the 20 requests that are not sampled", ended)
		}
		mu.Unlock()
		close(until)
		synctest.Wait()
		if ended[true] != 20 {
			t.Errorf("got %v, want all", ended)
		}
	})
}

// TestTraceWithoutKeys: after requests of 100,000 keys no attribute has a key, and the number of
// names and of values, except numbers, is bounded.
func TestTraceWithoutKeys(t *testing.T) {
	n := min(rounds.N(10_000, 100_000), 100_000)
	tracer, recorder := recorded()
	l, err := weir.New(weirotel.Trace(tracer, memory()), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.FixedWindow(1, 1000*time.Hour)},
		Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(1, 1000*time.Hour), Duration: time.Hour},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range n {
		key := fmt.Sprint(secret, i)
		for range 2 { // the second is refused, and begins a ban
			r := httptest.NewRequest("GET", "/", nil).WithContext(parent(t.Context(), true))
			r.Header.Set("Key", key)
			l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		}
		for _, span := range recorder.Ended() {
			s := text(span)
			if strings.Contains(s, secret) {
				t.Fatalf("a span has a key: %s", s)
			}
			s, _, _ = strings.Cut(s, " retry_after=")
			seen[s] = true
		}
		recorder.Reset()
	}
	if len(seen) > 10 {
		t.Errorf("got %d different spans: %v", len(seen), seen)
	}
}

// TestTraceOfGone: a request whose client has hung up is charged, and its span ends. A caller whose
// own context has ended gets its error, and so does its span.
func TestTraceOfGone(t *testing.T) {
	tracer, recorder := recorded()
	store := weirotel.Trace(tracer, memory())
	ctx, cancel := context.WithCancel(parent(t.Context(), true))
	cancel()
	tx := quota.Transaction{Charges: []quota.Charge{charge(algorithms.GCRA(60, time.Minute), 1)}}
	if err := store.Take(ctx, &tx); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	weir.Middleware(store, "api", weir.Global(), algorithms.GCRA(60, time.Minute))(http.NotFoundHandler()).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	spans := recorder.Ended()
	if len(spans) != 2 || len(recorder.Started()) != 2 {
		t.Fatalf("got %d of %d spans, want 2", len(spans), len(recorder.Started()))
	}
	for i, want := range []string{
		"weir.decide error.type=error outcome=error store=*memstore.Store context canceled",
		"weir.decide charges=1 limit=1m outcome=allowed remaining=59 rule=api store=*memstore.Store",
	} {
		if got := text(spans[i]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestTraceOfPayer: rules in shadow use the store that spends no granted units, and are traced.
func TestTraceOfPayer(t *testing.T) {
	tracer, recorder := recorded()
	store, ok := weirotel.Trace(tracer, payer{memory(), memory()}).(optional.Payer)
	if !ok {
		t.Fatal("the store is no Payer")
	}
	tx := quota.Transaction{Charges: []quota.Charge{charge(algorithms.GCRA(60, time.Minute), 1)}}
	if err := store.Unpaid().Take(parent(t.Context(), true), &tx); err != nil || len(recorder.Ended()) != 1 {
		t.Errorf("got error %v and %d spans, want one", err, len(recorder.Ended()))
	}
	if _, ok := weirotel.Trace(tracer, memory()).(optional.Payer); ok {
		t.Error("a store without granted units is a Payer")
	}
}

// TestTraceStores: metrics of a traced store are those of the store in it.
func TestTraceStores(t *testing.T) {
	hybrid := quota.Hybrid(memory(), quota.HybridOptions{})
	if got := tally.StoresOf([]quota.Store{weirotel.Trace(noop.Tracer{}, hybrid)}); !slices.Equal(got, []quota.Store{hybrid}) {
		t.Errorf("got %v, want the store in it", got)
	}
}

type payer struct {
	weir.Store
	unpaid weir.Store
}

func (p payer) Unpaid() weir.Store { return p.unpaid }

func BenchmarkTrace(b *testing.B) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(blocking{closed()}))
	tracer := provider.Tracer("bench")
	for _, bb := range []struct {
		name    string
		store   weir.Store
		sampled bool
	}{
		{"memory", memory(), true},
		{"wrapped", plain{memory()}, true}, // as Trace wraps it: a Limiter has a shorter path for a optional.Instant
		{"not-sampled", weirotel.Trace(tracer, memory()), false},
		{"sampled", weirotel.Trace(tracer, memory()), true},
	} {
		h := weir.Middleware(bb.store, "api", weir.Global(), algorithms.GCRA(1e9, time.Second))(http.NotFoundHandler())
		b.Run(bb.name, func(b *testing.B) {
			r, w := httptest.NewRequest("GET", "/", nil).WithContext(parent(b.Context(), bb.sampled)), httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				clear(w.Header())
				w.Body.Reset()
				h.ServeHTTP(w, r)
			}
		})
	}
}

// plain hides that a store is a optional.Instant.
type plain struct{ weir.Store }

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// The request has no span here. In a program, a middleware such as that of otelhttp begins one.
func ExampleTrace() {
	tracer := noop.NewTracerProvider().Tracer("weir") // otel.Tracer("weir")
	limit := weir.Middleware(weirotel.Trace(tracer, memstore.New(memstore.Options{})), "api", weir.ByIP(), algorithms.GCRA(1, time.Minute))
	w := httptest.NewRecorder()
	limit(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code)
	// Output: 404
}

// TestTraceOfStack: a traced store reports changes of bans, and announces the limits of rules, if the store
// within does.
func TestTraceOfStack(t *testing.T) {
	tracer, _ := recorded()
	within := &watching{Store: memory()}
	store := weirotel.Trace(tracer, within)
	if a, ok := store.(optional.Announcer); !ok {
		t.Error("the store is no Announcer")
	} else if a.Announce("r", nil); within.announced != "r" {
		t.Errorf("got %q announced, want r", within.announced)
	}
	if w, ok := store.(optional.Watcher); !ok || !w.Watch(quota.Charge{}, nil) {
		t.Error("the store is no Watcher")
	}
	store = weirotel.Trace(tracer, quota.Hybrid(memory(), quota.HybridOptions{}))
	if _, watches := store.(optional.Watcher); !watches {
		t.Error("around Hybrid: the store is no Watcher")
	}
	central := memory()
	store = weirotel.Trace(tracer, regions.New(within, central, regions.Options{Budget: "b", Region: "eu", Regions: 2}))
	if a, ok := store.(optional.Announcer); !ok {
		t.Error("around regions: the store is no Announcer")
	} else if a.Announce("eu", nil); within.announced != "eu" {
		t.Errorf("around regions: got %q announced, want eu", within.announced)
	}
	if _, watches := weirotel.Trace(tracer, memory()).(optional.Watcher); watches {
		t.Error("a store in memory is a Watcher")
	}
}

type watching struct {
	weir.Store
	announced string
}

func (w *watching) Announce(rule string, _ []quota.Limit) { w.announced = rule }

func (*watching) Watch(quota.Charge, func(quota.Decision, func() bool)) bool { return true }
