package weirgrpc

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/safe"
)

// ClientInterceptors returns interceptors that limit outgoing calls in the same way as
// Limiter.Transport limits requests. A call that exceeds a limit waits if it can be sent within
// MaxWait. Otherwise, it fails with ResourceExhausted and a RetryInfo; the error wraps a
// *weir.RefusedError. A call's keys are paused if the server's metadata reports that no units remain,
// or if the server sends a RetryInfo with ResourceExhausted or Unavailable. After ResourceExhausted, a
// call is retried under the same conditions as an HTTP request after a 429. The key function
// weir.ByHeader("Host") returns the connection's endpoint. If a rule has a Settle function, inner
// interceptors can call weir.ReportUsage with the context that they receive. ClientInterceptors
// ignores o.Base, and returns the same errors as Limiter.Transport.
//
// Install both interceptors, if the program opens streams. Under a concurrency limit, a stream counts
// as in flight until it ends. After a stream has started, nothing that the server sends pauses the
// keys of the stream.
//
// A call's error text contains neither the rule nor the cause, because a handler that returns the
// error would send the text to its own client. Use errors.As and errors.Is to find the cause.
// Retries by a service config's retry policy or by inner interceptors are not charged.
func ClientInterceptors(l *weir.Limiter, o weir.TransportOptions) (grpc.UnaryClientInterceptor, grpc.StreamClientInterceptor, error) {
	o.Base = send(nil)
	t, err := l.Transport(o)
	if err != nil {
		return nil, nil, err
	}
	c := client{t}
	return c.unary, c.stream, nil
}

// A client limits outgoing calls by a weir.Transport, whose Base is a send.
type client struct{ transport http.RoundTripper }

func (c client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var result error
	res, err := c.do(ctx, method, cc, req, func(ctx context.Context) *http.Response {
		var header, trailer metadata.MD
		result = invoker(ctx, method, req, reply, cc, append(slices.Clip(opts), grpc.Header(&header), grpc.Trailer(&trailer))...)
		return response(result, metadata.Join(header, trailer))
	})
	if err != nil {
		return err
	}
	res.Body.Close()
	return result
}

func (c client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	var over context.Context
	var cs grpc.ClientStream
	var result error
	res, err := c.do(ctx, method, cc, nil, func(ctx context.Context) *http.Response {
		var end context.CancelFunc
		over, end = context.WithCancel(ctx)
		if cs, result = streamer(ctx, desc, cc, method, append(slices.Clip(opts), grpc.OnFinish(func(error) { end() }))...); result != nil {
			end()
		}
		return response(result, nil)
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(over, func() { // on a goroutine, where a panic of Settle would end the process
		if _, err := safe.Call("Settle panicked", res.Body.Close); err != nil {
			slog.Error("weirgrpc: stream not settled", "method", method, "err", err)
		}
	})
	return cs, result
}

const (
	overLimit = "weirgrpc: the call was not sent, because it exceeds a limit of this client"
	unchecked = "weirgrpc: the call was not sent, because its limits could not be checked"
)

type sendKey struct{}

// A send is a function that sends a call. It is also the RoundTripper that sends the request for
// the call. The context is for weir.ReportUsage.
type send func(ctx context.Context) *http.Response

func (send) RoundTrip(r *http.Request) (*http.Response, error) {
	return r.Context().Value(sendKey{}).(send)(r.Context()), nil
}

// do calls f to send a call once it is admitted. It returns an error if the call was not sent.
func (c client) do(ctx context.Context, method string, cc *grpc.ClientConn, message any, f send) (*http.Response, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	r := request(context.WithValue(ctx, sendKey{}, f), method, md, message)
	r.GetBody = r.Body.(*call).body
	r.Host = cc.CanonicalTarget()
	r.Host = r.Host[strings.LastIndexByte(r.Host, '/')+1:]
	res, err := c.transport.RoundTrip(r)
	switch refused := refusal(err); {
	case refused != nil:
		err = &refusedError{cause: refused, answer: answer.Call{Code: int(codes.ResourceExhausted), Message: overLimit}, wait: refused.RetryAfter()}
	case err != nil && ctx.Err() != nil:
		err = statusOf(ctx.Err()).Err()
	case err != nil: // OnError has returned an error
		err = &refusedError{cause: err, answer: answer.Call{Code: int(codes.Unavailable), Message: unchecked}}
	}
	return res, err
}

// response returns an HTTP response that represents the server's answer: err is its status, and md
// its metadata.
func response(err error, md metadata.MD) *http.Response {
	s := statusOf(err)
	res := &http.Response{StatusCode: httpStatus(err), Header: http.Header{}, Body: http.NoBody}
	for name, values := range md {
		res.Header[http.CanonicalHeaderKey(name)] = values
	}
	for _, d := range s.Details() {
		pauses := s.Code() == codes.ResourceExhausted || s.Code() == codes.Unavailable
		if info, ok := d.(*errdetails.RetryInfo); ok && pauses && !errors.As(err, new(*weir.RefusedError)) { // an inner limiter may have refused the call; its error does not come from the server
			res.Header.Set("Retry-After", strconv.FormatFloat(info.RetryDelay.AsDuration().Seconds(), 'f', -1, 64))
		}
	}
	return res
}
