package weirgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/weirgrpc"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// limited returns a client of s whose calls l limits.
func limited(t *testing.T, s *service, l *weir.Limiter, o weir.TransportOptions, options ...grpc.ServerOption) pb.TestServiceClient {
	t.Helper()
	unary, streams, err := weirgrpc.ClientInterceptors(l, o)
	if err != nil {
		t.Fatal(err)
	}
	return pb.NewTestServiceClient(dial(t, listen(t, s, options...), grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(streams)))
}

// TestClientRefuses: a call that would have to wait too long is not sent, and its error says when it would be.
func TestClientRefuses(t *testing.T) {
	stores(t, func(t *testing.T, store weir.Store) {
		for _, k := range kinds {
			l := must(t, store, weir.Options{MaxWait: time.Second, Rules: []weir.Rule{{Name: "api", Key: weir.Join(weir.ByHeader("X-User"), weir.ByHeader("Host")), Limits: []weir.Limit{algorithms.GCRA(2, 2*time.Hour)}}}})
			s := &service{}
			c := limited(t, s, l, weir.TransportOptions{})
			for i := range 4 {
				err := k.call(by(t.Context(), "ann"+k.name), c)
				if i < 2 {
					if err != nil {
						t.Errorf("%s, call %d: %v", k.name, i, err)
					}
					continue
				}
				refused := (*weir.RefusedError)(nil)
				if status.Code(err) != codes.ResourceExhausted || wait(err) < 59*time.Minute || !errors.As(err, &refused) || refused.RetryAfter() != wait(err) {
					t.Errorf("%s, call %d: %v, %v", k.name, i, err, wait(err))
				}
			}
			if got := s.runs.Load(); got != 2 {
				t.Errorf("%s: %d calls were sent, want 2", k.name, got)
			}
		}
	})
}

// TestClientWaits: a call waits for its slot, and refunds it if its context ends.
func TestClientWaits(t *testing.T) {
	for _, k := range kinds {
		s := &service{}
		l := must(t, weirtest.Memory(), weir.Options{MaxWait: time.Minute, Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{algorithms.GCRA(1, 50*time.Millisecond)}}}})
		c := limited(t, s, l, weir.TransportOptions{})
		begun := time.Now()
		for range 3 {
			if err := k.call(by(t.Context(), "ann"), c); err != nil {
				t.Error(err)
			}
		}
		if d := time.Since(begun); d < 100*time.Millisecond || s.runs.Load() != 3 {
			t.Errorf("%s: %d calls were sent in %v, want 3 in 100ms at least", k.name, s.runs.Load(), d)
		}

		store, limit := weirtest.Memory(), algorithms.LeakyBucket(9, 1, time.Hour)
		l = must(t, store, weir.Options{MaxWait: 9 * time.Hour, Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{limit}}}})
		c = limited(t, s, l, weir.TransportOptions{})
		if err := k.call(by(t.Context(), "ann"), c); err != nil {
			t.Error(err)
		}
		before := spent(t, store, "api", limit)
		ctx, cancel := context.WithCancel(by(t.Context(), "ann"))
		go func() {
			for spent(t, store, "api", limit) == before { // until it waits
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		if err := k.call(ctx, c); status.Code(err) != codes.Canceled || spent(t, store, "api", limit) != before || s.runs.Load() != 4 {
			t.Errorf("%s: a cancelled call: %v; %d units are spent, want %d", k.name, err, spent(t, store, "api", limit), before)
		}
	}
}

// TestClientObeys: a server that says when to come again is obeyed: the call goes out again then,
// and others queue behind it. An answer about limits without units left pauses too.
func TestClientObeys(t *testing.T) {
	store := weirtest.Memory()
	l := must(t, store, weir.Options{MaxWait: time.Minute, Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}}}})
	var refusedAt atomic.Int64
	s := &service{}
	s.work = func(ctx context.Context) error {
		if s.runs.Load() > 1 {
			return nil
		}
		refusedAt.Store(time.Now().UnixNano())
		answer, _ := status.New(codes.ResourceExhausted, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(50 * time.Millisecond)})
		return answer.Err()
	}
	c := limited(t, s, l, weir.TransportOptions{})
	if _, err := c.UnaryCall(by(t.Context(), "ann"), &pb.SimpleRequest{}); err != nil || s.runs.Load() != 2 {
		t.Errorf("%v after %d calls, want success after 2", err, s.runs.Load())
	}
	if d := time.Now().UnixNano() - refusedAt.Load(); time.Duration(d) < 50*time.Millisecond {
		t.Errorf("sent again after %v, want 50ms", time.Duration(d))
	}
	impatient := must(t, store, weir.Options{Rules: l.Rules()})
	c = limited(t, s, impatient, weir.TransportOptions{MaxPause: 2 * time.Hour})
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Internal, codes.Aborted} { // whose RetryInfo is about the call, not about the key
		s.work = func(context.Context) error {
			answer, _ := status.New(code, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)})
			return answer.Err()
		}
		if _, err := c.UnaryCall(by(t.Context(), "ann"), &pb.SimpleRequest{}); status.Code(err) != code {
			t.Errorf("%v: got %v, want an answer of the server", code, err)
		}
	}
	s.work = func(ctx context.Context) error {
		return grpc.SetHeader(ctx, metadata.Pairs("ratelimit-remaining", "0", "ratelimit-limit", "5", "ratelimit-reset", "3600"))
	}
	if _, err := c.UnaryCall(by(t.Context(), "ann"), &pb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		refused := (*weir.RefusedError)(nil)
		if err := k.call(by(t.Context(), "ann"), c); !errors.As(err, &refused) || refused.Admission.Refusal.Reason != weir.ReasonPause {
			t.Errorf("%s: %v, want a pause", k.name, err)
		}
	}
	if err := kinds[0].call(by(t.Context(), "ben"), c); err != nil {
		t.Errorf("another key: %v", err)
	}
}

// TestClientChain: the refusal of an inner limiter of this process is no answer of the server, and
// pauses nothing.
func TestClientChain(t *testing.T) {
	store := weirtest.Memory()
	limiter := func(name string, n int64) grpc.UnaryClientInterceptor {
		i, _, err := weirgrpc.ClientInterceptors(must(t, store, weir.Options{Rules: []weir.Rule{{Name: name, Limits: []weir.Limit{algorithms.FixedWindow(n, 1000*aDay)}}}}), weir.TransportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	c := pb.NewTestServiceClient(dial(t, listen(t, &service{}), grpc.WithChainUnaryInterceptor(limiter("outer", 9), limiter("inner", 1))))
	for i := range 3 {
		_, err := c.UnaryCall(by(t.Context(), "ann"), &pb.SimpleRequest{})
		refused := (*weir.RefusedError)(nil)
		if i > 0 && (!errors.As(err, &refused) || refused.Admission.Refusal.Rule != "inner") {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// TestClientHeld: a call holds its unit in flight until it has ended, however it ends.
func TestClientHeld(t *testing.T) {
	stores(t, func(t *testing.T, store weir.Store) {
		l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{busy}}}})
		begun, finish := make(chan bool), make(chan error)
		s := &service{work: func(ctx context.Context) error {
			begun <- true
			select {
			case err := <-finish:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		c := limited(t, s, l, weir.TransportOptions{})
		for _, end := range []struct {
			name string
			end  func(cancel context.CancelFunc)
			want codes.Code
		}{
			{"served", func(context.CancelFunc) { finish <- nil }, codes.OK},
			{"failed", func(context.CancelFunc) { finish <- status.Error(codes.Aborted, "") }, codes.Aborted},
			{"cancelled", func(cancel context.CancelFunc) { cancel() }, codes.Canceled},
		} {
			for _, k := range kinds {
				ctx, cancel := context.WithCancel(by(t.Context(), "ann"))
				result := make(chan error)
				go func() { result <- k.call(ctx, c) }()
				<-begun
				if spent(t, store, "api", busy) == 0 {
					t.Errorf("%s, %s: a running call has nothing in flight", end.name, k.name)
				}
				end.end(cancel)
				if err := <-result; status.Code(err) != end.want {
					t.Errorf("%s, %s: got %v, want %v", end.name, k.name, err, end.want)
				}
				free(t, store, "api", busy)
				cancel()
			}
		}
	})
	t.Run("no server", func(t *testing.T) {
		store := weirtest.Memory()
		l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{busy}}}})
		unary, streams, _ := weirgrpc.ClientInterceptors(l, weir.TransportOptions{})
		fails := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, status.Error(codes.Unavailable, "")
		}
		for _, inner := range [][]grpc.StreamClientInterceptor{nil, {fails}} {
			cc := dial(t, "127.0.0.1:1", grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(append([]grpc.StreamClientInterceptor{streams}, inner...)...))
			for _, k := range kinds {
				if err := k.call(by(context.Background(), "ann"), pb.NewTestServiceClient(cc)); status.Code(err) != codes.Unavailable {
					t.Errorf("%s: %v", k.name, err)
				}
				free(t, store, "api", busy)
			}
		}
	})
}

// TestClientSettlePanics: a Settle that panics does not end the process, although a stream is settled on a
// goroutine of its own, and units in flight are released.
func TestClientSettlePanics(t *testing.T) {
	store := weirtest.Memory()
	busy := algorithms.InFlight(1, time.Hour)
	l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily, busy}, Settle: func(weir.Outcome) int64 { panic("Settle") }}}})
	unary, streams, _ := weirgrpc.ClientInterceptors(l, weir.TransportOptions{})
	c := pb.NewTestServiceClient(dial(t, listen(t, &service{}), grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(streams)))
	for _, k := range kinds {
		func() {
			defer func() { _ = recover() }() // a unary call panics on the goroutine of its caller
			if err := k.call(by(t.Context(), "ann"), c); err != nil {
				t.Error(err)
			}
		}()
		free(t, store, "api", busy)
	}
}

// TestClientSettles: what a call has used, as an inner interceptor reports it, is charged when the
// call ends. A call that reports nothing costs what was reserved.
func TestClientSettles(t *testing.T) {
	for _, want := range []int64{3, 10} {
		store := weirtest.Memory()
		l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "tokens", Unit: "tokens", Limits: []weir.Limit{daily}, Cost: func(*http.Request) int64 { return 10 }, Settle: weir.ChargeUsed}}})
		unary, streams, _ := weirgrpc.ClientInterceptors(l, weir.TransportOptions{})
		report := func(ctx context.Context) {
			if want == 3 {
				weir.ReportUsage(ctx, "tokens", 3)
			}
		}
		c := pb.NewTestServiceClient(dial(t, listen(t, &service{}),
			grpc.WithChainUnaryInterceptor(unary, func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				defer report(ctx)
				return invoker(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(streams, func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				defer report(ctx)
				return streamer(ctx, desc, cc, method, opts...)
			})))
		for i, k := range kinds {
			if err := k.call(by(t.Context(), "ann"), c); err != nil {
				t.Error(err)
			}
			for deadline := time.Now().Add(time.Minute); spent(t, store, "tokens", daily) != int64(i+1)*want; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: %d units are spent, want %d", k.name, spent(t, store, "tokens", daily), int64(i+1)*want)
				}
			}
		}
	}
}

// TestClientUndecided: without a decision a call is sent, unless OnError says that it is not.
func TestClientUndecided(t *testing.T) {
	down := weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return quota.ErrUnusable })
	l := must(t, down, weir.Options{Logger: slog.New(slog.DiscardHandler), Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{daily}}}})
	for _, k := range kinds {
		if err := k.call(t.Context(), limited(t, &service{}, l, weir.TransportOptions{OnError: weir.FailClosed})); status.Code(err) != codes.Unavailable || !errors.Is(err, quota.ErrUnusable) {
			t.Errorf("%s, closed: %v", k.name, err)
		}
		open := weir.TransportOptions{OnError: func(r *http.Request, _ error) error { return nil }}
		if err := k.call(t.Context(), limited(t, &service{}, l, open)); err != nil {
			t.Errorf("%s, open: %v", k.name, err)
		}
	}
}

// TestClientTellsNothing: a server that returns the error of a call that it could not make, wrapped
// or not, tells its own client neither a rule nor what is wrong with the store.
func TestClientTellsNothing(t *testing.T) {
	const secret = "secret 10.0.0.5:6379"
	down := weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return errors.New(secret) })
	for _, store := range []weir.Store{down, weirtest.Memory()} {
		l := must(t, store, weir.Options{Logger: slog.New(slog.DiscardHandler), Rules: []weir.Rule{{Name: secret, Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}})
		for _, k := range kinds {
			back := limited(t, &service{}, l, weir.TransportOptions{OnError: weir.FailClosed})
			for _, format := range []string{"%w", "books: %w"} {
				k.call(t.Context(), back)
				front := &service{work: func(ctx context.Context) error { return fmt.Errorf(format, k.call(ctx, back)) }}
				err := kinds[0].call(t.Context(), pb.NewTestServiceClient(dial(t, listen(t, front))))
				if c := status.Code(err); c != codes.Unavailable && c != codes.ResourceExhausted || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s: %v", k.name, err)
				}
			}
		}
	}
}

// TestClientOptions: an invalid option is an error at the start.
func TestClientOptions(t *testing.T) {
	l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily}}}})
	if unary, stream, err := weirgrpc.ClientInterceptors(l, weir.TransportOptions{MaxPause: -1}); err == nil || unary != nil || stream != nil {
		t.Errorf("got interceptors: %v, %v, error %v", unary != nil, stream != nil, err)
	}
}

// A program makes one call an hour of each server. There is none at this address.
func ExampleClientInterceptors() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)},
	}}}) // with MaxWait, calls wait instead of failing
	if err != nil {
		fmt.Println(err)
		return
	}
	unary, streams, err := weirgrpc.ClientInterceptors(limiter, weir.TransportOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	conn, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(streams))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	for range 2 {
		_, err := pb.NewTestServiceClient(conn).EmptyCall(context.Background(), &pb.Empty{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// Unavailable
	// ResourceExhausted
}
