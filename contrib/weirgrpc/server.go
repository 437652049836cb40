package weirgrpc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed83679106/weir"
)

// An Admit admits or refuses a request. Use Limiter.Admit or the function that config.File.Admit
// returns.
type Admit = func(*http.Request) (*weir.Admission, error)

// ServerInterceptors returns interceptors that limit incoming calls. They send the rate-limit fields
// as header metadata or, for a refused call, as trailers. A refused call's status code corresponds to
// the HTTP status: ResourceExhausted for 429, Unavailable for 503 (including the case that no decision
// was possible), PermissionDenied for a denied key, and InvalidArgument for a missing key. If waiting
// helps, the status includes a google.rpc.RetryInfo. For the retry policies of gRPC clients, the
// trailer grpc-retry-pushback-ms contains a wait of up to a minute; if the wait is longer, the
// trailer tells clients not to retry. Outer interceptors receive an error that wraps a
// *weir.RefusedError.
//
// Install both interceptors, because a service may have methods of both kinds. Under a concurrency
// limit, a stream counts as in flight until its handler returns.
//
// The second Admit, if not nil, is called for each message that the client sends in a stream, and
// can refuse the message. If MaxWait is set, RecvMsg waits until the message is allowed, which slows
// the client down. After a message is refused, every call to RecvMsg returns the same error, and the
// handler should return it to end the stream. A message is done when the handler calls RecvMsg
// again or returns. Until then, the stream's context carries the decision on the message in
// addition to the decision on the stream.
//
// ServerInterceptors panics if its first argument is nil.
func ServerInterceptors(calls, messages Admit) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	if calls == nil {
		panic("weirgrpc: calls is nil")
	}
	s := server{calls, messages}
	return s.unary, s.stream
}

// A server holds the arguments of ServerInterceptors.
type server struct{ calls, messages Admit }

func (s server) unary(ctx context.Context, message any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	a, err := admit(s.calls, serverRequest(ctx, info.FullMethod, info.Server, message))
	if err != nil {
		return nil, err
	}
	err = serve(a.Done, func() error {
		grpc.SetHeader(ctx, fields(a)) // fails if an interceptor has already sent the header
		reply, err = handler(a.Context(), message)
		return err
	})
	return reply, err
}

func (s server) stream(service any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	r := serverRequest(ss.Context(), info.FullMethod, service, nil)
	a, err := admit(s.calls, r)
	if err != nil {
		return err
	}
	limited := &stream{ServerStream: ss, call: r.WithContext(a.Context()), messages: s.messages}
	return serve(func(o weir.Outcome) {
		defer a.Done(o) // even if a Settle function panics for the message
		limited.over.Store(true)
		limited.done(o)
	}, func() error {
		ss.SetHeader(fields(a))
		return handler(service, limited)
	})
}

type stream struct {
	grpc.ServerStream
	call     *http.Request
	messages Admit
	refused  error                          // the error for a refused message
	message  atomic.Pointer[weir.Admission] // the message that the handler is processing
	over     atomic.Bool                    // the handler has returned
}

func (s *stream) Context() context.Context {
	if a := s.message.Load(); a != nil {
		return a.Context()
	}
	return s.call.Context()
}

func (s *stream) RecvMsg(m any) error {
	s.done(weir.Outcome{})
	if s.refused != nil {
		return s.refused
	}
	if err := s.ServerStream.RecvMsg(m); err != nil || s.messages == nil {
		return err
	}
	r := s.call.WithContext(context.WithValue(s.call.Context(), messageKey{}, m))
	a, err := admit(s.messages, r)
	if err != nil {
		s.refused = err
		return err
	}
	if s.message.Store(a); s.over.Load() { // a goroutine of the handler has called RecvMsg after the handler returned
		s.done(weir.Outcome{})
	}
	return nil
}

// done settles the message that the handler is processing.
func (s *stream) done(o weir.Outcome) {
	if a := s.message.Swap(nil); a != nil {
		a.Done(o)
	}
}

// serve calls a handler, and then calls done with the outcome, even if the handler panics.
func serve(done func(weir.Outcome), handler func() error) error {
	o := weir.Outcome{Panicked: true}
	defer func() { done(o) }()
	err := handler()
	o.Panicked, o.Status = false, httpStatus(err)
	return err
}

// metadataKey is the key under which a context holds the metadata of an incoming call, as far as
// gRPC reveals it. FromIncomingContext would copy the metadata, and request copies it anyway.
var metadataKey = func() any {
	s := &spy{Context: context.Background()}
	metadata.FromIncomingContext(s)
	return s.key
}()

// A spy is a context that records which key is looked up.
type spy struct {
	context.Context
	key any
}

func (s *spy) Value(key any) any {
	s.key = key
	return nil
}

func serverRequest(ctx context.Context, method string, server, message any) *http.Request {
	md, ok := ctx.Value(metadataKey).(metadata.MD)
	if !ok { // there is none, or gRPC keeps it in another form
		md, _ = metadata.FromIncomingContext(ctx)
	}
	r := request(ctx, method, md, message)
	if server != nil { // without a server, the client may have made up the method
		r.Pattern = method
	}
	if p, ok := peer.FromContext(ctx); ok {
		if p.Addr != nil { // not nil for a peer on a socket
			r.RemoteAddr = address(p.Addr)
		}
		if t, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			state := t.State // with r.TLS = &t.State, t would be allocated even in calls without TLS
			r.TLS = &state
		}
	}
	return r
}

// address returns a.String(), with fewer allocations for a TCP address.
func address(a net.Addr) string {
	if t, ok := a.(*net.TCPAddr); ok && t != nil && t.Zone == "" {
		if of := t.AddrPort(); of.IsValid() {
			return netip.AddrPortFrom(of.Addr().Unmap(), of.Port()).String()
		}
	}
	return a.String()
}

// maxPushback is the longest wait after which clients should retry automatically. Without this
// maximum, a retry policy could block a call that has no deadline for a day. A longer wait appears
// only in RetryInfo.
const maxPushback = time.Minute

// admit calls decide for a request. If the request is refused, admit returns the error for the
// call, and sets the rate-limit fields as trailers. It does not send the fields as header metadata,
// because clients do not retry a call after they have received header metadata.
func admit(decide Admit, r *http.Request) (*weir.Admission, error) {
	a, err := decide(r)
	if err == nil {
		return a, nil
	}
	refused := refusal(err)
	if refused == nil {
		return nil, status.FromContextError(err).Err()
	}
	a = refused.Admission
	md, e := fields(a), &refusedError{cause: refused, wait: a.RetryAfter()}
	e.answer.RetryAfter = strings.Join(md["retry-after"], "")
	weir.Refuse(&e.answer, r.WithContext(a.Context()))
	if seconds, _ := strconv.Atoi(e.answer.RetryAfter); time.Duration(seconds)*time.Second-e.wait >= time.Second {
		e.wait = time.Duration(seconds) * time.Second // includes the rule's jitter
	}
	if e.wait > maxPushback {
		e.pushback[0] = "-1" // do not retry
	} else if e.wait > 0 {
		e.pushback[0] = strconv.FormatInt((e.wait + time.Millisecond - 1).Milliseconds(), 10)
	}
	if e.wait > 0 {
		md["grpc-retry-pushback-ms"] = e.pushback[:]
	}
	grpc.SetTrailer(r.Context(), md)
	return nil, e
}

// refusal returns the RefusedError that err wraps, or nil if there is none.
func refusal(err error) *weir.RefusedError {
	if r, ok := err.(*weir.RefusedError); ok { // the usual case, in which errors.As takes a tenth of the call
		return r
	}
	r := (*weir.RefusedError)(nil)
	errors.As(err, &r)
	return r
}

// fields returns the rate-limit fields.
func fields(a *weir.Admission) metadata.MD {
	md := metadata.MD{}
	a.WriteMetadata(md)
	return md
}
