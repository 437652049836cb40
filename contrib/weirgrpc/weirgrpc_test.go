package weirgrpc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/weirgrpc"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// wait returns what the RetryInfo of an error says, or −1 if it has none.
func wait(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration()
		}
	}
	return -1
}

// TestCalls: calls of every kind spend the quota of their user, and see their limits as metadata.
// A refused call does not reach its handler, and says when the next one fits.
func TestCalls(t *testing.T) {
	stores(t, func(t *testing.T, store weir.Store) {
		limit := algorithms.GCRA(2, 2*time.Hour)
		l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Join(weir.ByHeader("X-User"), weir.ByRoute()), Limits: []weir.Limit{limit}}}})
		for _, k := range kinds {
			s := &service{}
			c := serve(t, s, l.Admit, nil)
			for i := range 4 {
				var header, trailer metadata.MD
				err := k.call(by(t.Context(), "ann"), c, grpc.Header(&header), grpc.Trailer(&trailer))
				fields := metadata.Join(header, trailer)
				if want := fmt.Sprint(max(0, 1-i)); !slices.Equal(fields["x-ratelimit-limit"], []string{"2"}) || !slices.Equal(fields["x-ratelimit-remaining"], []string{want}) {
					t.Errorf("%s, call %d: metadata %v, want %s remaining", k.name, i, fields, want)
				}
				if i < 2 {
					if err != nil || trailer["x-ratelimit-limit"] != nil {
						t.Errorf("%s, call %d: %v", k.name, i, err)
					}
					continue
				}
				if status.Code(err) != codes.ResourceExhausted || !strings.HasPrefix(status.Convert(err).Message(), "Too many requests. Try again in ") {
					t.Errorf("%s, call %d: %v, want %v", k.name, i, err, codes.ResourceExhausted)
				}
				if d := wait(err); d > time.Hour || d < 59*time.Minute {
					t.Errorf("%s, call %d: RetryInfo %v, want about an hour", k.name, i, d)
				}
				if len(trailer["retry-after"]) != 1 || len(trailer["grpc-retry-pushback-ms"]) != 1 {
					t.Errorf("%s, call %d: header %v, trailer %v", k.name, i, header, trailer)
				}
			}
			if got := s.runs.Load(); got != 2 {
				t.Errorf("%s: %d handlers ran, want 2", k.name, got)
			}
		}
	})
}

// TestRequest: rules see the request that a call is on the wire.
func TestRequest(t *testing.T) {
	var got []string
	seen := func(r *http.Request) (string, bool) {
		_, err := io.ReadAll(r.Body)
		got = append(got, fmt.Sprint(r.Method, " ", r.URL, " ", r.Pattern, " ", r.Proto, " ", r.Host, " ", r.Header["X-User"], r.Header["Trace-Bin"], r.Header.Get("Content-Type"), " ",
			r.ContentLength, " ", err, " ", strings.HasPrefix(r.RemoteAddr, "127.0.0.1:"), " ", weirgrpc.Message(r)))
		return "all", true
	}
	l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: seen, Limits: []weir.Limit{daily}}}})
	s := &service{}
	c := serve(t, s, l.Admit, l.Admit, grpc.WithAuthority("api.test"))
	ctx := metadata.AppendToOutgoingContext(by(by(t.Context(), "ann"), "ben"), "trace-bin", "\xff\x00")
	if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 7}); err != nil {
		t.Fatal(err)
	}
	if err := kinds[1].call(ctx, c); err != nil {
		t.Fatal(err)
	}
	const head, tail = "POST /grpc.testing.TestService/", " HTTP/2.0 api.test [ann ben] [/wA]application/grpc -1 weirgrpc: gRPC reads the body true "
	want := []string{
		head + "UnaryCall /grpc.testing.TestService/UnaryCall" + tail + "response_size:7",
		head + "StreamingOutputCall /grpc.testing.TestService/StreamingOutputCall" + tail + "<nil>",
		head + "StreamingOutputCall /grpc.testing.TestService/StreamingOutputCall" + tail,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if key, ok := weir.ByJSON("user", 100)(request(t, l)); key != "unreadable" || !ok {
		t.Errorf("ByJSON: %q %v, want unreadable", key, ok)
	}
}

// TestNames: key functions find metadata under its canonical name, also in a request that they have kept
// while the next call was served.
func TestNames(t *testing.T) {
	for _, lower := range []string{"authorization", "content-type", "grpc-accept-encoding", "traceparent", "user-agent", "x-user"} {
		if name, want := weirgrpc.CanonicalName(lower), http.CanonicalHeaderKey(lower); name != want {
			t.Errorf("%s: got %s, want %s", lower, name, want)
		}
	}
	var kept []*http.Request
	l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily}}}})
	c := serve(t, &service{}, func(r *http.Request) (*weir.Admission, error) { kept = append(kept, r); return l.Admit(r) }, nil)
	for _, user := range []string{"ann", "ben"} {
		ctx := metadata.AppendToOutgoingContext(by(t.Context(), user), "authorization", "Bearer "+user)
		if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"ann", "ben"} {
		r := kept[i]
		if got := r.Header.Get("X-User") + " " + r.Header.Get("Authorization"); got != want+" Bearer "+want {
			t.Errorf("got %s, want %s", got, want)
		}
		for name := range r.Header {
			if name != http.CanonicalHeaderKey(name) || name == ":authority" {
				t.Errorf("%s is not in canonical form", name)
			}
		}
		if r.Header["Content-Type"] == nil || r.Header["User-Agent"] == nil {
			t.Errorf("a usual field is missing: %v", r.Header)
		}
	}
}

// TestMetadataKept: a rule that changes its request does not change the metadata that the handler gets,
// also if gRPC does not reveal where it keeps the metadata.
func TestMetadataKept(t *testing.T) {
	change := func(r *http.Request) (string, bool) {
		for name := range r.Header {
			r.Header.Add(name, "ben")
		}
		got := fmt.Sprint(r.Host, r.Header)
		r.Header["X-User"][0], r.Header["Trace-Bin"][0] = "eve", "eve"
		r.Header.Del("Content-Type")
		return got, true
	}
	for _, key := range []any{*weirgrpc.MetadataKey, nil} {
		defer func(old any) { *weirgrpc.MetadataKey = old }(*weirgrpc.MetadataKey)
		*weirgrpc.MetadataKey = key
		l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: change, Limits: []weir.Limit{daily}}}})
		sent := metadata.MD{":authority": {"api.test"}, "content-type": {"application/grpc"}, "X-User": append(make([]string, 0, 9), "ann"), "Trace-Bin": {"\xff"}}
		want, room := sent.Copy(), sent["X-User"][:2]
		var got string
		_, err := unaryServer(l.Admit)(metadata.NewIncomingContext(t.Context(), sent), nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
			got = weir.FromContext(ctx).Charges[0].Key
			return nil, nil
		})
		if err != nil || got != "api.testmap[Content-Type:[application/grpc ben] Trace-Bin:[/w ben] X-User:[ann ben]]" {
			t.Errorf("got %s, %v", got, err)
		}
		if !reflect.DeepEqual(sent, want) || room[1] != "" {
			t.Errorf("got %q with %q, want %q", sent, room, want)
		}
	}
}

// request returns the request of a unary call.
func request(t *testing.T, l *weir.Limiter) (r *http.Request) {
	c := serve(t, &service{}, func(got *http.Request) (*weir.Admission, error) { r = got; return l.Admit(got) }, nil)
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTLS: rules see the state of TLS.
func TestTLS(t *testing.T) {
	https := httptest.NewTLSServer(nil)
	defer https.Close()
	var got *tls.ConnectionState
	key := func(r *http.Request) (string, bool) { got = r.TLS; return "all", true }
	l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: key, Limits: []weir.Limit{daily}}}})
	addr := listen(t, &service{}, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: https.TLS.Certificates})), grpc.UnaryInterceptor(unaryServer(l.Admit)))
	trust := https.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	c := pb.NewTestServiceClient(dial(t, addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: trust, ServerName: "example.com"}))))
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil || got == nil || got.ServerName != "example.com" {
		t.Errorf("%v, TLS %v", err, got)
	}
	if request(t, l).TLS != nil {
		t.Error("a call without TLS has a state of TLS")
	}
}

// TestAnswers: the code of a refused call tells a client whether it may come again.
func TestAnswers(t *testing.T) {
	limits := []weir.Limit{algorithms.GCRA(1, time.Hour)}
	failing := func(err error) weir.Store {
		return weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return err })
	}
	none := func(*http.Request) (string, bool) { return "", false }
	for _, c := range []struct {
		name  string
		store weir.Store
		rule  weir.Rule
		code  codes.Code
		waits bool
	}{
		{"limit", nil, weir.Rule{Limits: limits}, codes.ResourceExhausted, true},
		{"overload", nil, weir.Rule{Limits: limits, Status: 503}, codes.Unavailable, true},
		{"ban", nil, weir.Rule{Limits: limits, Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(1, time.Hour), Duration: time.Hour}}, codes.ResourceExhausted, true},
		{"denied", nil, weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Denied() }}, codes.PermissionDenied, false},
		{"no key", nil, weir.Rule{Key: none, NoKey: weir.NoKeyRefuse, Limits: limits}, codes.InvalidArgument, false},
		{"too dear", nil, weir.Rule{Limits: limits, Cost: func(*http.Request) int64 { return 2 }}, codes.ResourceExhausted, false},
		{"store down", failing(weirtest.ErrDown), weir.Rule{Limits: limits}, codes.Unavailable, false},
		{"store busy", failing(quota.ErrBusy), weir.Rule{Limits: limits}, codes.Unavailable, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.store == nil {
				c.store = weirtest.Memory()
			}
			c.rule.Name = "secret"
			if c.rule.Key == nil {
				c.rule.Key = weir.Global()
			}
			l := must(t, c.store, weir.Options{Rules: []weir.Rule{c.rule}, OnError: weir.FailClosed, Logger: slog.New(slog.DiscardHandler)})
			var inside error
			watch := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				reply, err := handler(ctx, req)
				inside = err
				return reply, err
			}
			client := pb.NewTestServiceClient(dial(t, listen(t, &service{}, grpc.ChainUnaryInterceptor(watch, unaryServer(l.Admit)))))
			var err error
			for range 3 {
				_, err = client.UnaryCall(t.Context(), &pb.SimpleRequest{})
			}
			if status.Code(err) != c.code || (wait(err) > 0) != c.waits || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v after %v, want %v, waits %v", err, wait(err), c.code, c.waits)
			}
			if refused := (*weir.RefusedError)(nil); !errors.As(inside, &refused) || refused.Admission.Refusal.Rule != "secret" {
				t.Errorf("an outer interceptor sees %v", inside)
			}
		})
	}
}

// TestWrapped: an Admit function may wrap the error of a Limiter.
func TestWrapped(t *testing.T) {
	l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}})
	admit := func(r *http.Request) (*weir.Admission, error) {
		a, err := l.Admit(r)
		if err != nil {
			err = fmt.Errorf("tier: %w", err)
		}
		return a, err
	}
	c := serve(t, &service{}, admit, nil)
	c.UnaryCall(t.Context(), &pb.SimpleRequest{})
	if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); status.Code(err) != codes.ResourceExhausted || wait(err) < 59*time.Minute {
		t.Errorf("got %v", err)
	}
}

// TestJitter: RetryInfo has the jitter of the rule.
func TestJitter(t *testing.T) {
	l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Minute)}, RetryJitter: 1000 * time.Hour}}})
	c := serve(t, &service{}, l.Admit, nil)
	var longest time.Duration
	for range 9 {
		_, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{})
		longest = max(longest, wait(err))
	}
	if longest <= time.Minute {
		t.Errorf("9 calls wait up to %v", longest)
	}
}

// TestSettle: what a call costs in the end follows from the code of the call, from its panic, and
// from ReportUsage.
func TestSettle(t *testing.T) {
	var outcome atomic.Pointer[weir.Outcome]
	for _, c := range []struct {
		name   string
		settle func(weir.Outcome) int64
		work   func(ctx context.Context) error
		cost   int64
		status int
	}{
		{"served", weir.RefundErrors, nil, 10, 200},
		{"internal", weir.RefundErrors, func(context.Context) error { return status.Error(codes.Internal, "") }, 0, 500},
		{"not found", weir.RefundErrors, func(context.Context) error { return status.Error(codes.NotFound, "") }, 10, 404},
		{"plain error", weir.RefundErrors, func(context.Context) error { return errors.New("x") }, 0, 500},
		{"context error", weir.RefundErrors, func(context.Context) error { return context.DeadlineExceeded }, 0, 504},
		{"unknown code", weir.RefundErrors, func(context.Context) error { return status.Error(99, "") }, 0, 500},
		{"panic", weir.RefundErrors, func(context.Context) error { panic("x") }, 0, 500},
		{"failed login", weir.ChargeOnly(401), func(context.Context) error { return status.Error(codes.Unauthenticated, "") }, 10, 401},
		{"login", weir.ChargeOnly(401), nil, 0, 200},
		{"usage", func(o weir.Outcome) int64 { return o.Used }, func(ctx context.Context) error { weir.ReportUsage(ctx, "tokens", 3); return nil }, 3, 200},
		{"decision", nil, func(ctx context.Context) error {
			if weir.FromContext(ctx).Charges[0].Key != "ann" {
				return errors.New("no decision")
			}
			return nil
		}, 10, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, k := range kinds {
				store := weirtest.Memory()
				rule := weir.Rule{Name: "api", Unit: "tokens", Limits: []weir.Limit{daily}, Cost: func(*http.Request) int64 { return 10 }}
				if c.settle != nil {
					rule.Settle = func(o weir.Outcome) int64 { outcome.Store(&o); return c.settle(o) }
				}
				l := must(t, store, weir.Options{Rules: []weir.Rule{rule}})
				client := pb.NewTestServiceClient(dial(t, listen(t, &service{work: c.work},
					grpc.ChainUnaryInterceptor(recoverUnary, unaryServer(l.Admit)),
					grpc.ChainStreamInterceptor(recoverStream, streamServer(l.Admit, nil)))))
				err := k.call(by(t.Context(), "ann"), client)
				if got := spent(t, store, "api", daily); got != c.cost {
					t.Errorf("%s: cost %d, want %d; %v", k.name, got, c.cost, err)
				}
				if o := outcome.Swap(nil); o != nil && (o.Status != c.status || o.Panicked != (c.name == "panic")) {
					t.Errorf("%s: status %d, panicked %v, want %d", k.name, o.Status, o.Panicked, c.status)
				}
			}
		})
	}
}

func recoverUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
	defer recovered(&err)
	return handler(ctx, req)
}

func recoverStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer recovered(&err)
	return handler(srv, ss)
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = status.Error(codes.Internal, "panic")
	}
}

// TestHeld: whatever ends a call, its unit in flight is free afterwards, and not before.
func TestHeld(t *testing.T) {
	type world struct {
		store  weir.Store
		begun  chan bool
		finish chan error
		hangUp func()
	}
	ends := []struct {
		name string
		end  func(w *world, cancel context.CancelFunc)
		want codes.Code
	}{
		{"served", func(w *world, _ context.CancelFunc) { w.finish <- nil }, codes.OK},
		{"failed", func(w *world, _ context.CancelFunc) { w.finish <- status.Error(codes.Aborted, "") }, codes.Aborted},
		{"panicked", func(w *world, _ context.CancelFunc) { w.finish <- errPanic }, codes.Internal},
		{"cancelled", func(_ *world, cancel context.CancelFunc) { cancel() }, codes.Canceled},
		{"deadline", nil, codes.DeadlineExceeded},
		{"hung up", func(w *world, _ context.CancelFunc) { w.hangUp() }, codes.Canceled},
	}
	stores(t, func(t *testing.T, store weir.Store) {
		for _, order := range []string{"recovery outside", "recovery inside"} {
			for _, e := range ends {
				for _, k := range kinds {
					t.Run(order+"/"+e.name+"/"+k.name, func(t *testing.T) {
						w := &world{store: store, begun: make(chan bool, 1), finish: make(chan error)}
						s := &service{work: func(ctx context.Context) error {
							w.begun <- true
							select {
							case err := <-w.finish:
								if err == errPanic {
									panic(err)
								}
								return err
							case <-ctx.Done():
								return ctx.Err()
							}
						}}
						l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{busy}}}})
						unary := []grpc.UnaryServerInterceptor{recoverUnary, unaryServer(l.Admit)}
						streams := []grpc.StreamServerInterceptor{recoverStream, streamServer(l.Admit, l.Admit)}
						if order == "recovery inside" {
							slices.Reverse(unary)
							slices.Reverse(streams)
						}
						cc := dial(t, listen(t, s, grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(streams...)))
						w.hangUp = func() { cc.Close() }
						ctx, cancel := context.WithCancel(t.Context())
						if e.end == nil {
							ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
						}
						defer cancel()
						result := make(chan error)
						go func() { result <- k.call(by(ctx, "ann"), pb.NewTestServiceClient(cc)) }()
						if e.end != nil {
							<-w.begun
							if spent(t, store, "api", busy) == 0 {
								t.Error("a running call has nothing in flight")
							}
							e.end(w, cancel)
						}
						if err := <-result; status.Code(err) != e.want {
							t.Errorf("got %v, want %v", err, e.want)
						}
						free(t, store, "api", busy)
					})
				}
			}
		}
	})
}

var errPanic = errors.New("panic")

// TestHooksPanic: a PartitionKey or Settle that panics leaves nothing in flight.
func TestHooksPanic(t *testing.T) {
	for name, o := range map[string][2]weir.Options{
		"PartitionKey": {{Headers: headers.IETF, Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{busy}, PartitionKey: func(string) string { panic("hook") }}}}},
		"Settle of a message": {
			{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{busy}}}},
			{Rules: []weir.Rule{{Name: "messages", Limits: []weir.Limit{daily}, Settle: func(weir.Outcome) int64 { panic("hook") }}}},
		},
	} {
		store := weirtest.Memory()
		calls, messages := must(t, store, o[0]).Admit, weirgrpc.Admit(nil)
		if o[1].Rules != nil {
			messages = must(t, store, o[1]).Admit
		}
		cc := dial(t, listen(t, &service{}, grpc.ChainUnaryInterceptor(recoverUnary, unaryServer(calls)),
			grpc.ChainStreamInterceptor(recoverStream, streamServer(calls, messages))))
		for _, k := range kinds {
			if err := k.call(by(t.Context(), "ann"), pb.NewTestServiceClient(cc)); messages == nil && status.Code(err) != codes.Internal {
				t.Errorf("%s, %s: got %v", name, k.name, err)
			}
		}
		if n := spent(t, store, "api", busy); n != 0 {
			t.Errorf("%s: %d units are still in flight", name, n)
		}
	}
}

// TestNobodyRunsUncharged: clients hang up at any moment, and each handler that runs was charged.
func TestNobodyRunsUncharged(t *testing.T) {
	stores(t, func(t *testing.T, store weir.Store) {
		s := &service{work: func(ctx context.Context) error {
			if rand.IntN(4) == 0 {
				return status.Error(codes.Internal, "")
			}
			return nil
		}}
		l := must(t, store, weir.Options{Rules: []weir.Rule{
			{Name: "api", Limits: []weir.Limit{daily}, Settle: func(o weir.Outcome) int64 { return o.Cost }},
			{Name: "busy", Limits: []weir.Limit{busy}},
		}})
		c := serve(t, s, l.Admit, nil)
		n := rounds.N(100, 400)
		weirtest.Together(8, func(int) {
			for range n / 8 {
				ctx, cancel := context.WithTimeout(by(t.Context(), "ann"), rand.N(2*time.Millisecond))
				kinds[rand.IntN(len(kinds))].call(ctx, c)
				cancel()
			}
		})
		free(t, store, "busy", busy)
		if runs, got := s.runs.Load(), spent(t, store, "api", daily); got < runs || got > int64(n) || runs == 0 {
			t.Errorf("%d handlers ran, %d units are spent, of %d calls", runs, got, n)
		}
	})
}

// TestMessages: each message that a client sends is charged. Once one is refused, the handler gets
// no other one.
func TestMessages(t *testing.T) {
	stores(t, func(t *testing.T, store weir.Store) {
		calls := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily}}}})
		messages := must(t, store, weir.Options{Rules: []weir.Rule{{
			Name: "messages", Limits: []weir.Limit{algorithms.GCRA(5, time.Hour)},
			Cost: func(r *http.Request) int64 {
				return int64(weirgrpc.Message(r).(*pb.StreamingInputCallRequest).GetPayload().GetType())
			},
		}}})
		var after []error
		s := &service{}
		handler := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			err := handler(srv, ss)
			after = append(after, ss.RecvMsg(new(pb.StreamingInputCallRequest))) // of a handler that does not give up
			return err
		}
		c := pb.NewTestServiceClient(dial(t, listen(t, s, grpc.ChainStreamInterceptor(streamServer(calls.Admit, messages.Admit), handler))))
		stream, err := c.StreamingInputCall(by(t.Context(), "ann"))
		if err != nil {
			t.Fatal(err)
		}
		for _, cost := range []pb.PayloadType{1, 1, 1, 3, 1, 1} {
			stream.Send(&pb.StreamingInputCallRequest{Payload: &pb.Payload{Type: cost}})
		}
		_, err = stream.CloseAndRecv()
		if status.Code(err) != codes.ResourceExhausted || wait(err) > 12*time.Minute || wait(err) <= 11*time.Minute {
			t.Errorf("got %v, %v, want %v after 12 minutes", err, wait(err), codes.ResourceExhausted)
		}
		if got := s.got.Load(); got != 3 {
			t.Errorf("the handler got %d messages, want 3", got)
		}
		if status.Code(after[0]) != codes.ResourceExhausted {
			t.Errorf("after a refusal, the handler gets %v", after[0])
		}
		if got := spent(t, store, "api", daily); got != 1 {
			t.Errorf("the stream has cost %d, want 1", got)
		}
	})
}

// TestMessageContext: while a handler works on a message, the context of the stream has the decision
// about the message, which is settled and released when the handler receives the next.
func TestMessageContext(t *testing.T) {
	store := weirtest.Memory()
	calls := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily}}}})
	messages := must(t, store, weir.Options{Rules: []weir.Rule{
		{Name: "tokens", Unit: "tokens", Limits: []weir.Limit{daily}, Cost: func(*http.Request) int64 { return 100 }, Settle: func(o weir.Outcome) int64 { return o.Used }},
		{Name: "busy", Limits: []weir.Limit{busy}},
	}})
	var got []any
	look := func(rule func(context.Context) string, ss grpc.ServerStream) {
		got = append(got, rule(ss.Context()), spent(t, store, "tokens", daily), spent(t, store, "busy", busy))
	}
	rule := func(ctx context.Context) string { return weir.FromContext(ctx).Charges[0].Rule }
	handler := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
		look(rule, ss)
		for range 2 {
			if err := ss.RecvMsg(new(pb.StreamingInputCallRequest)); err != nil {
				return err
			}
			look(rule, ss)
			weir.ReportUsage(ss.Context(), "tokens", 7)
		}
		return ss.SendMsg(new(pb.StreamingInputCallResponse))
	}
	c := pb.NewTestServiceClient(dial(t, listen(t, &service{}, grpc.ChainStreamInterceptor(streamServer(calls.Admit, messages.Admit), handler))))
	stream, err := c.StreamingInputCall(by(t.Context(), "ann"))
	if err != nil {
		t.Fatal(err)
	}
	stream.Send(&pb.StreamingInputCallRequest{})
	stream.Send(&pb.StreamingInputCallRequest{})
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	if want := []any{"api", int64(0), int64(0), "tokens", int64(100), int64(1), "tokens", int64(107), int64(1)}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	free(t, store, "busy", busy)
	if got := spent(t, store, "tokens", daily); got != 14 {
		t.Errorf("two messages cost %d, want 14", got)
	}
}

// TestMessageWait: with MaxWait a message waits for its slot.
func TestMessageWait(t *testing.T) {
	limit := algorithms.GCRA(1, time.Millisecond)
	messages := must(t, weirtest.Memory(), weir.Options{MaxWait: time.Minute, Rules: []weir.Rule{{Name: "messages", Limits: []weir.Limit{limit}}}})
	calls := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily}}}})
	s := &service{}
	c := serve(t, s, calls.Admit, messages.Admit)
	stream, err := c.StreamingInputCall(by(t.Context(), "ann"))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for range 50 {
		stream.Send(&pb.StreamingInputCallRequest{})
	}
	if _, err := stream.CloseAndRecv(); err != nil || s.got.Load() != 50 || time.Since(begun) < 49*time.Millisecond {
		t.Errorf("%d of 50 messages in %v, %v", s.got.Load(), time.Since(begun), err)
	}
}

// TestServerWaits: a call waits for its slot. If it is cancelled, or its deadline is before its slot,
// its handler does not run and its slot is refunded.
func TestServerWaits(t *testing.T) {
	stores(t, func(t *testing.T, store weir.Store) {
		for _, k := range kinds {
			limit := algorithms.GCRA(1, time.Hour)
			l := must(t, store, weir.Options{MaxWait: 2 * time.Hour, Rules: []weir.Rule{{Name: k.name, Limits: []weir.Limit{limit}}, {Name: "busy", Limits: []weir.Limit{daily}}}})
			s := &service{}
			c := serve(t, s, l.Admit, nil)
			if err := k.call(by(t.Context(), "ann"), c); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(by(t.Context(), "ann"), time.Minute)
			if err := k.call(ctx, c); status.Code(err) != codes.ResourceExhausted || wait(err) < 59*time.Minute {
				t.Errorf("%s: whose deadline is too early: %v", k.name, err)
			}
			cancel()
			before := spent(t, store, "busy", daily)
			ctx, cancel = context.WithCancel(by(t.Context(), "ann"))
			go func() {
				for spent(t, store, "busy", daily) == before { // until it waits
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
			if err := k.call(ctx, c); status.Code(err) != codes.Canceled {
				t.Errorf("%s: cancelled: %v", k.name, err)
			}
			for deadline := time.Now().Add(time.Minute); spent(t, store, "busy", daily) != before; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: the slot of a cancelled call was not refunded", k.name)
				}
			}
			if got := s.runs.Load(); got != 1 {
				t.Errorf("%s: %d handlers ran, want 1", k.name, got)
			}
		}
	})
}

// TestGoroutineLeftBehind: a handler that returns while another goroutine of it still receives
// leaves no message in flight.
func TestGoroutineLeftBehind(t *testing.T) {
	store := weirtest.Memory()
	calls := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily}}}})
	messages := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "busy", Limits: []weir.Limit{busy}}}})
	decides, returned := make(chan bool), make(chan bool)
	slow := func(r *http.Request) (*weir.Admission, error) {
		decides <- true
		<-returned
		return messages.Admit(r)
	}
	received := make(chan error)
	handler := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
		go func() { received <- ss.RecvMsg(new(pb.StreamingInputCallRequest)) }()
		<-decides
		return status.Error(codes.Aborted, "")
	}
	c := pb.NewTestServiceClient(dial(t, listen(t, &service{}, grpc.ChainStreamInterceptor(streamServer(calls.Admit, slow), handler))))
	err := kinds[2].call(by(t.Context(), "ann"), c)
	if status.Code(err) != codes.Aborted {
		t.Fatal(err)
	}
	close(returned)
	if err := <-received; err != nil || spent(t, store, "busy", busy) != 0 {
		t.Errorf("%d messages are in flight, %v", spent(t, store, "busy", busy), err)
	}
}

// TestRetryPolicy: a client with a retry policy waits for as long as the server says, and no longer.
func TestRetryPolicy(t *testing.T) {
	l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{algorithms.GCRA(1, 20*time.Millisecond)}}}})
	s := &service{}
	c := serve(t, s, l.Admit, nil, grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "3600s", "maxBackoff": "3600s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 5 {
		if _, err := c.UnaryCall(by(ctx, "ann"), &pb.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.runs.Load(); got != 5 {
		t.Errorf("%d handlers ran, want 5", got)
	}
}

// TestNoLongRetry: a client with a retry policy and no deadline gets the refusal at once, if the wait
// is long.
func TestNoLongRetry(t *testing.T) {
	for _, cost := range []int64{1, 2} { // 2 never fits
		l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}, Cost: func(*http.Request) int64 { return cost }}}})
		c := serve(t, &service{}, l.Admit, nil, grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
			"maxAttempts": 5, "initialBackoff": "3600s", "maxBackoff": "3600s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
		ctx, cancel := context.WithTimeout(by(t.Context(), "ann"), time.Minute)
		defer cancel()
		c.UnaryCall(ctx, &pb.SimpleRequest{})
		if _, err := c.UnaryCall(ctx, &pb.SimpleRequest{}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("cost %d: %v", cost, err)
		}
	}
}

// TestWarned: a rule that reads bodies is logged, by the name of a method.
func TestWarned(t *testing.T) {
	var log strings.Builder
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(old)
	weirgrpc.WarnedBody.Store(false)
	l := must(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByJSON("user", 100), Limits: []weir.Limit{daily}}}})
	c := serve(t, &service{}, l.Admit, nil)
	for range 3 {
		if _, err := c.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "weir.ByJSON") || !strings.Contains(got, "method=/grpc.testing.TestService/UnaryCall") {
		t.Errorf("logged %q", got)
	}
}

// TestTwice: a Limiter for calls that is also that for messages, or whose interceptor is there twice,
// is logged by the name of its rule.
func TestTwice(t *testing.T) {
	for name, twice := range map[string]bool{"messages": false, "interceptors": true} {
		var log strings.Builder
		l := must(t, weirtest.Memory(), weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily}}}})
		calls, messages := []grpc.StreamServerInterceptor{streamServer(l.Admit, l.Admit)}, 1
		if twice {
			calls, messages = []grpc.StreamServerInterceptor{streamServer(l.Admit, nil), streamServer(l.Admit, nil)}, 0
		}
		s := &service{}
		c := pb.NewTestServiceClient(dial(t, listen(t, s, grpc.ChainStreamInterceptor(calls...))))
		if err := kinds[3].call(by(t.Context(), "ann"), c); err != nil || s.got.Load() < int64(messages) {
			t.Fatal(err, s.got.Load())
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "request charged twice by one Limiter") || !strings.Contains(got, "rule=api") {
			t.Errorf("%s: logged %q", name, got)
		}
	}
}

// TestOddCalls: a code that gRPC does not know counts as a failure, and a peer without an address is
// served.
func TestOddCalls(t *testing.T) {
	store := weirtest.Memory()
	l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Limits: []weir.Limit{daily}, Settle: weir.RefundErrors}}})
	odd := &service{work: func(context.Context) error { return status.Error(1<<32-1, "") }}
	if _, err := serve(t, odd, l.Admit, nil).UnaryCall(by(t.Context(), "ann"), &pb.SimpleRequest{}); err == nil || spent(t, store, "api", daily) != 0 {
		t.Errorf("%v, %d units spent", err, spent(t, store, "api", daily))
	}
	_, err := unaryServer(l.Admit)(peer.NewContext(t.Context(), &peer.Peer{}), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
	if err != nil {
		t.Error(err)
	}
}

// TestMadeUpMethods: methods that a client makes up share a route.
func TestMadeUpMethods(t *testing.T) {
	store := weirtest.Memory()
	l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByRoute(), Limits: []weir.Limit{algorithms.GCRA(2, time.Hour)}}}})
	cc := dial(t, listen(t, &service{}, grpc.ChainStreamInterceptor(streamServer(l.Admit, nil)),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return status.Error(codes.NotFound, "") })))
	var got []codes.Code
	for i := range 3 {
		got = append(got, status.Code(cc.Invoke(t.Context(), fmt.Sprintf("/a.B/C%d", i), &pb.Empty{}, &pb.Empty{})))
	}
	if want := []codes.Code{codes.NotFound, codes.NotFound, codes.ResourceExhausted}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNil(t *testing.T) {
	for _, f := range []func(){func() { unaryServer(nil) }, func() { streamServer(nil, nil) }} {
		func() {
			defer func() {
				if recover() != "weirgrpc: calls is nil" {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}

// A call costs as many units as its message has bytes.
func ExampleMessage() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "bytes", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Hour)},
		Cost: func(r *http.Request) int64 { return int64(proto.Size(weirgrpc.Message(r).(proto.Message))) },
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	interceptor := unaryServer(limiter.Admit)
	served := func(context.Context, any) (any, error) { return &pb.SimpleResponse{}, nil }
	for range 2 {
		message := &pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, 600)}}
		_, err := interceptor(context.Background(), message, &grpc.UnaryServerInfo{FullMethod: "/files.Files/Put"}, served)
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// ResourceExhausted
}
