// Package rpc tests what clients of Connect, gRPC and gRPC-Web make of the answers that package
// weir gives to refused requests over net/http.
package rpc

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

type (
	text   = wrapperspb.StringValue
	client = connect.Client[text, text]
)

const service = "/weir.test.Echo/"

// newServer serves unary calls, without side effects too, and all streams, of the three protocols
// of Connect, and grpc-go's own server for paths that begin with /grpc. Rules limit both.
func newServer(t *testing.T, store weir.Store, o weir.Options) *httptest.Server {
	t.Helper()
	l, err := weir.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(service+"Unary", connect.NewUnaryHandler(service+"Unary", func(_ context.Context, r *connect.Request[text]) (*connect.Response[text], error) {
		return connect.NewResponse(r.Msg), nil
	}, connect.WithIdempotency(connect.IdempotencyNoSideEffects)))
	mux.Handle(service+"Server", connect.NewServerStreamHandler(service+"Server", func(_ context.Context, r *connect.Request[text], s *connect.ServerStream[text]) error {
		return s.Send(r.Msg)
	}))
	mux.Handle(service+"Client", connect.NewClientStreamHandler(service+"Client", func(_ context.Context, s *connect.ClientStream[text]) (*connect.Response[text], error) {
		for s.Receive() {
		}
		return connect.NewResponse(&text{}), s.Err()
	}))
	mux.Handle(service+"Both", connect.NewBidiStreamHandler(service+"Both", func(_ context.Context, s *connect.BidiStream[text, text]) error {
		for {
			m, err := s.Receive()
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			} else if err := s.Send(m); err != nil {
				return err
			}
		}
	}))
	native := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var m text
		if err := s.RecvMsg(&m); err != nil {
			return err
		}
		return s.SendMsg(&m)
	}))
	mux.Handle("/grpc.Echo/", native)
	server := httptest.NewUnstartedServer(l.Handler(mux))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// http2 returns a client that speaks HTTP/2 without TLS.
func http2() *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: p}}
}

// A call is a way to call the server.
type call struct {
	name string
	make func(ctx context.Context, c *client, header http.Header) error
}

func set(to, from http.Header) {
	for name, values := range from {
		to[name] = values
	}
}

var calls = []call{
	{"Unary", func(ctx context.Context, c *client, header http.Header) error {
		r := connect.NewRequest(&text{Value: "x"})
		set(r.Header(), header)
		_, err := c.CallUnary(ctx, r)
		return err
	}},
	{"Server", func(ctx context.Context, c *client, header http.Header) error {
		r := connect.NewRequest(&text{Value: "x"})
		set(r.Header(), header)
		s, err := c.CallServerStream(ctx, r)
		if err != nil {
			return err
		}
		defer s.Close()
		for s.Receive() {
		}
		return s.Err()
	}},
	{"Client", func(ctx context.Context, c *client, header http.Header) error {
		s := c.CallClientStream(ctx)
		set(s.RequestHeader(), header)
		s.Send(&text{Value: "x"})
		_, err := s.CloseAndReceive()
		return err
	}},
	{"Both", func(ctx context.Context, c *client, header http.Header) error {
		s := c.CallBidiStream(ctx)
		set(s.RequestHeader(), header)
		s.Send(&text{Value: "x"})
		s.CloseRequest()
		defer s.CloseResponse()
		for {
			if _, err := s.Receive(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}},
}

var protocols = []struct {
	name    string
	options []connect.ClientOption
}{
	{"connect", nil},
	{"connect json", []connect.ClientOption{connect.WithProtoJSON()}},
	{"connect get", []connect.ClientOption{connect.WithHTTPGet(), connect.WithIdempotency(connect.IdempotencyNoSideEffects)}},
	{"grpc", []connect.ClientOption{connect.WithGRPC()}},
	{"grpc json", []connect.ClientOption{connect.WithGRPC(), connect.WithProtoJSON()}},
	{"grpc-web", []connect.ClientOption{connect.WithGRPCWeb()}},
	{"grpc-web json", []connect.ClientOption{connect.WithGRPCWeb(), connect.WithProtoJSON()}},
}

// retryInfo returns what the RetryInfo of an error says.
func retryInfo(err *connect.Error) (d time.Duration) {
	for _, detail := range err.Details() {
		if v, err := detail.Value(); err == nil {
			if info, ok := v.(*errdetails.RetryInfo); ok {
				d = info.RetryDelay.AsDuration()
			}
		}
	}
	return d
}

// cases are refusals, and what clients of Connect must make of them.
var cases = []struct {
	name  string
	store func() weir.Store
	rule  weir.Rule
	code  connect.Code
	wait  time.Duration
}{
	{"limit", weirtest.Memory, weir.Rule{Limits: limits}, connect.CodeResourceExhausted, time.Hour},
	{"a limit of its own status", weirtest.Memory, weir.Rule{Limits: limits, Status: 503}, connect.CodeUnavailable, time.Hour},
	{"denied", weirtest.Memory, weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Denied() }}, connect.CodePermissionDenied, 0},
	{"no key", weirtest.Memory, weir.Rule{Key: weir.ByHeader("X-None"), NoKey: weir.NoKeyRefuse, Limits: limits}, connect.CodeInvalidArgument, 0},
	{"busy", func() weir.Store {
		return weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return quota.ErrBusy })
	}, weir.Rule{Limits: limits}, connect.CodeUnavailable, time.Second},
}

var limits = []weir.Limit{algorithms.AnchoredWindow(1, time.Hour)}

// TestConnect: clients of all protocols of Connect, and for each kind of call, see the code and the
// wait of a refusal, and a call that is not refused works.
func TestConnect(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.rule.Name = "api"
			if c.rule.Key == nil {
				c.rule.Key = weir.ByHeader("X-User")
			}
			server := newServer(t, c.store(), weir.Options{Rules: []weir.Rule{c.rule}})
			for _, p := range protocols {
				for _, call := range calls {
					header := http.Header{"X-User": {p.name + call.name}}
					client := connect.NewClient[text, text](http2(), server.URL+service+call.name, p.options...)
					if len(c.rule.Limits) > 0 && c.rule.NoKey == 0 && c.name != "busy" {
						if err := call.make(t.Context(), client, header); err != nil {
							t.Fatalf("%s %s: %v", p.name, call.name, err)
						}
					}
					err := call.make(t.Context(), client, header)
					var e *connect.Error
					if !errors.As(err, &e) || e.Code() != c.code || !connect.IsWireError(err) {
						t.Errorf("%s %s: %v, want %v", p.name, call.name, err, c.code)
						continue
					}
					if d := retryInfo(e); d > c.wait || d == 0 != (c.wait == 0) {
						t.Errorf("%s %s: RetryInfo %v, want up to %v", p.name, call.name, d, c.wait)
					}
					if got := e.Meta().Get("Retry-After"); (got == "") != (c.wait == 0) {
						t.Errorf("%s %s: Retry-After %q", p.name, call.name, got)
					}
				}
			}
		})
	}
}

// TestGRPC: so does the client of grpc-go, with the server of grpc-go behind net/http. A retry
// policy waits as long as the answer says.
func TestGRPC(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.rule.Name = "api"
			if c.rule.Key == nil {
				c.rule.Key = weir.Global()
			}
			server := newServer(t, c.store(), weir.Options{Rules: []weir.Rule{c.rule}})
			cc, err := grpc.NewClient(server.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer cc.Close()
			var trailer metadata.MD
			for range 2 {
				err = cc.Invoke(t.Context(), "/grpc.Echo/Call", &text{Value: "x"}, &text{}, grpc.Trailer(&trailer))
			}
			if status.Code(err) != codes.Code(c.code) {
				t.Errorf("got %v, want %v", err, c.code)
			}
			var d time.Duration
			for _, detail := range status.Convert(err).Details() {
				d = detail.(*errdetails.RetryInfo).RetryDelay.AsDuration()
			}
			pushback := ""
			if d > time.Minute {
				pushback = "-1" // do not retry
			} else if d > 0 {
				pushback = fmt.Sprint(d.Milliseconds())
			}
			if d > c.wait || d == 0 != (c.wait == 0) || strings.Join(trailer["grpc-retry-pushback-ms"], "") != pushback {
				t.Errorf("RetryInfo %v, trailer %v, want up to %v", d, trailer, c.wait)
			}
		})
	}
	t.Run("retry policy", func(t *testing.T) {
		server := newServer(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, 50*time.Millisecond)}}}})
		cc, err := grpc.NewClient(server.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "3600s", "maxBackoff": "3600s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		defer cc.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 2 {
			if err := cc.Invoke(ctx, "/grpc.Echo/Call", &text{Value: "x"}, &text{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestOverHTTP1: the answers work over HTTP/1.1, for the protocols that do.
func TestOverHTTP1(t *testing.T) {
	server := newServer(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: limits}}})
	for _, p := range protocols {
		if strings.HasPrefix(p.name, "grpc") && !strings.HasPrefix(p.name, "grpc-web") {
			continue
		}
		for _, call := range calls[:2] {
			client := connect.NewClient[text, text](http.DefaultClient, server.URL+service+call.name, p.options...)
			call.make(t.Context(), client, nil)
			if err := call.make(t.Context(), client, nil); connect.CodeOf(err) != connect.CodeResourceExhausted {
				t.Errorf("%s %s: %v", p.name, call.name, err)
			}
		}
	}
}

// TestWebText: the text form of gRPC-Web, which no client in Go speaks, is the binary form in base64.
func TestWebText(t *testing.T) {
	server := newServer(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: limits}}})
	bodies := map[string]string{}
	for _, kind := range []string{"", "application/grpc-web", "application/grpc-web-text"} {
		res, err := http.Post(server.URL+service+"Unary", kind, strings.NewReader("AAAAAAA="))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || kind != "" && (res.StatusCode != 200 || res.Header.Get("Content-Type") != kind || res.Header.Get("Grpc-Status") != "") {
			t.Errorf("%s: %v, %v, %v", kind, res.Status, res.Header, err)
		}
		bodies[kind] = string(b)
	}
	text, err := base64.StdEncoding.DecodeString(bodies["application/grpc-web-text"])
	if err != nil || len(text) < 5 || text[0] != 0x80 || int(text[4]) != len(text)-5 && int(text[3])<<8|int(text[4]) != len(text)-5 || !bytes.Contains(text, []byte("grpc-status: 8\r\ngrpc-message: Too many requests.")) {
		t.Errorf("%q, %v", text, err)
	}
}

// TestOthers: a client that speaks none of these protocols gets problem details as before.
func TestOthers(t *testing.T) {
	server := newServer(t, weirtest.Memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: limits}}})
	for _, kind := range []string{"", "application/json", "application/x-www-form-urlencoded"} {
		res, err := http.Post(server.URL+"/", kind, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if kind != "" && (res.StatusCode != 429 || res.Header.Get("Content-Type") != "application/problem+json" || res.Header.Get("Vary") != "") {
			t.Errorf("%s: %v %v", kind, res.Status, res.Header)
		}
	}
}
