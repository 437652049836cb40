// Package weirgrpc provides gRPC interceptors that apply the rules of package weir.
//
//	package main
//
//	import (
//		"log"
//		"net"
//		"time"
//
//		"google.golang.org/grpc"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/memstore"
//		"github.com/seed83679106/weir/contrib/weirgrpc"
//	)
//
//	func main() {
//		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
//			Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
//		}}})
//		if err != nil {
//			log.Fatal(err)
//		}
//		unary, stream := weirgrpc.ServerInterceptors(limiter.Admit, nil)
//		server := grpc.NewServer(grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream))
//		// Register your services here.
//		listener, err := net.Listen("tcp", "localhost:9090")
//		if err != nil {
//			log.Fatal(err)
//		}
//		log.Fatal(server.Serve(listener))
//	}
//
// # What rules see
//
// Rules see each call as an HTTP POST request to /package.Service/Method. The request has the
// call's metadata as header fields, its authority as Host, its peer address as RemoteAddr, and its
// TLS state. Key functions and rules that work for HTTP therefore work for gRPC. For weir.ByRoute,
// a call's route is its path. The body cannot be read, but [Message] returns the message. With
// weir.ByJSON, all calls share one quota, and a warning is logged once. If a Cost function returns
// the ContentLength, every call is refused, because the length is −1.
//
// # Handlers
//
// A handler's context carries the decision, so weir.FromContext and weir.ReportUsage work. Settle
// functions receive the HTTP status that google.rpc.Code assigns to the call's status code, so
// weir.RefundErrors and weir.ChargeOnly work.
//
// # Clients
//
// [ClientInterceptors] limit outgoing calls.
package weirgrpc

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/quota"
)

type messageKey struct{}

// A call holds a request. It is also the request's context, which contains the message, and the
// request's body. Reading the body fails, because gRPC reads the real one.
type call struct {
	context.Context
	message any
	request http.Request
	url     url.URL
	values  [5]string // memory for the values of the header, which most calls do not exceed
}

// Value implements context.Context.
func (c *call) Value(key any) any {
	if key == (messageKey{}) {
		return c.message
	}
	return c.Context.Value(key)
}

// Message returns the gRPC message that the request r represents: the message of a unary call, or a
// single message in a stream. It returns nil for the request that opens a stream. Do not modify the
// message.
func Message(r *http.Request) any { return r.Context().Value(messageKey{}) }

var warnedBody atomic.Bool // a warning about a rule that reads bodies was logged

// Read returns an error, because gRPC reads the body.
func (c *call) Read([]byte) (int, error) {
	if !warnedBody.Swap(true) {
		slog.Warn("weirgrpc: body of a call read by a key or a cost", "method", c.url.Path,
			"likely", "weir.ByJSON or jsonrpc.Cost, but gRPC reads the body", "effect", "all calls share a quota or are refused", "fix", "use weirgrpc.Message")
	}
	return 0, errors.New("weirgrpc: gRPC reads the body")
}

// Close implements io.Closer.
func (*call) Close() error { return nil }

func (c *call) body() (io.ReadCloser, error) { return c, nil }

// request returns an HTTP request that represents a call. It copies the metadata, which may be
// shared.
func request(ctx context.Context, method string, md metadata.MD, message any) *http.Request {
	c := &call{Context: ctx, message: message, url: url.URL{Path: method}}
	r := &c.request
	*r = *post.WithContext(c)
	r.URL, r.Header, r.Body = &c.url, make(http.Header, len(md)), c
	copies := c.values[:0]
	for name, values := range md {
		if name == ":authority" && len(values) > 0 {
			r.Host = values[0]
			continue
		}
		n := len(copies)
		copies = append(copies, values...)
		values = copies[n:len(copies):len(copies)]
		if name = canonicalName(name); strings.HasSuffix(name, "-Bin") {
			for i, v := range values {
				values[i] = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
		}
		r.Header[name] = values
	}
	return r
}

// post contains the parts of a request that are the same for all calls.
var post = &http.Request{Method: http.MethodPost, Proto: "HTTP/2.0", ProtoMajor: 2, ContentLength: -1}

// canonicalName is http.CanonicalHeaderKey, but takes less time for the names that most calls have,
// some of which http.CanonicalHeaderKey would allocate.
func canonicalName(name string) string {
	switch name {
	case "authorization":
		return "Authorization"
	case "content-type":
		return "Content-Type"
	case "grpc-accept-encoding":
		return "Grpc-Accept-Encoding"
	case "traceparent":
		return "Traceparent"
	case "user-agent":
		return "User-Agent"
	}
	return http.CanonicalHeaderKey(name)
}

// A refusedError is the error for a call that was not served or sent. It has a gRPC status, and
// wraps an error for errors.As.
type refusedError struct {
	cause    error
	answer   answer.Call
	wait     time.Duration // quota.Never if waiting does not help, and 0 if the wait is unknown
	pushback [1]string     // memory for a trailer
}

func (e *refusedError) Error() string { return e.GRPCStatus().Err().Error() }
func (e *refusedError) Unwrap() error { return e.cause }

// GRPCStatus returns the status. It is created only when gRPC sends it.
func (e *refusedError) GRPCStatus() *status.Status {
	s := status.New(codes.Code(e.answer.Code), e.answer.Message)
	if e.wait > 0 && e.wait != quota.Never {
		s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.wait)}) // fails only for codes.OK
	}
	return s
}

// statusOf returns the status of a call whose handler has returned err.
func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.FromContextError(err)
}

// httpStatus returns the HTTP status that corresponds to the error from a call.
func httpStatus(err error) int {
	return cmp.Or(httpStatuses[statusOf(err).Code()], http.StatusInternalServerError)
}

var httpStatuses = map[codes.Code]int{
	codes.OK: 200, codes.Canceled: 499, codes.Unknown: 500, codes.InvalidArgument: 400, codes.DeadlineExceeded: 504,
	codes.NotFound: 404, codes.AlreadyExists: 409, codes.PermissionDenied: 403, codes.ResourceExhausted: 429,
	codes.FailedPrecondition: 400, codes.Aborted: 409, codes.OutOfRange: 400, codes.Unimplemented: 501,
	codes.Internal: 500, codes.Unavailable: 503, codes.DataLoss: 500, codes.Unauthenticated: 401,
}
