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
//		"github.com/seed83679106/weir/weirgrpc"
//	)
//
//	func main() {
//		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
//			Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
//		}}})
//		if err != nil {
//			log.Fatal(err)
//		}
//		server := grpc.NewServer(
//			grpc.ChainUnaryInterceptor(weirgrpc.UnaryServer(limiter.Admit)),
//			grpc.ChainStreamInterceptor(weirgrpc.StreamServer(limiter.Admit, nil)),
//		)
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
// TLS state. Key functions and rules that work for HTTP therefore work for gRPC. For keys.ByRoute,
// a call's route is its path. The body cannot be read, but [Message] returns the message. With
// keys.ByJSON, all calls share one quota, and a warning is logged once. A Cost function based on
// ContentLength refuses every call, because the length is −1.
//
// # Handlers
//
// A handler's context carries the decision, so weir.FromContext and weir.ReportUsage work. Settle
// functions receive the HTTP status that google.rpc.Code assigns to the call's status code, so
// weir.RefundErrors and weir.ChargeOnly work.
//
// # Clients
//
// [UnaryClient] and [StreamClient] limit outgoing calls.
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

	"github.com/seed83679106/weir/quota"
)

type messageKey struct{}

// Message returns the gRPC message that the request r represents: that of a unary call, or a single
// message in a stream. It returns nil for the request that opens a stream. Do not modify the
// message.
func Message(r *http.Request) any { return r.Context().Value(messageKey{}) }

// An unreadable is the body of each call of a method, because gRPC reads it.
type unreadable string

var told atomic.Bool // the program about a rule that reads bodies

func (method unreadable) Read([]byte) (int, error) {
	if !told.Swap(true) {
		slog.Warn("weirgrpc: body of a call read by a key or a cost", "method", string(method),
			"likely", "keys.ByJSON or jsonrpc.Cost, but gRPC reads the body", "effect", "all calls share a quota or are refused", "fix", "use weirgrpc.Message")
	}
	return 0, errors.New("weirgrpc: gRPC reads the body")
}

func (unreadable) Close() error { return nil }

// request returns the request that a call is on the wire.
func request(ctx context.Context, method string, md metadata.MD, message any) *http.Request {
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: method}, Proto: "HTTP/2.0", ProtoMajor: 2, Header: make(http.Header, len(md)),
		Body: unreadable(method), GetBody: func() (io.ReadCloser, error) { return unreadable(method), nil }, ContentLength: -1,
	}
	for name, values := range md {
		if name == ":authority" && len(values) > 0 {
			r.Host = values[0]
		} else if r.Header[http.CanonicalHeaderKey(name)] = values; strings.HasSuffix(name, "-bin") {
			r.Header.Del(name)
			for _, v := range values {
				r.Header.Add(name, base64.RawStdEncoding.EncodeToString([]byte(v)))
			}
		}
	}
	return r.WithContext(context.WithValue(ctx, messageKey{}, message))
}

// A refusedError is the error of a call that was not served or sent, as gRPC and errors.As see it.
type refusedError struct {
	status *status.Status
	cause  error
}

func (e *refusedError) Error() string              { return e.status.Err().Error() }
func (e *refusedError) GRPCStatus() *status.Status { return e.status }
func (e *refusedError) Unwrap() error              { return e.cause }

// refuse returns the error of a refused call. wait is quota.Never if no wait helps, and 0 if it is
// unknown.
func refuse(cause error, code codes.Code, message string, wait time.Duration) error {
	s := status.New(code, message)
	if wait > 0 && wait != quota.Never {
		s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}) // only codes.OK has no details
	}
	return &refusedError{s, cause}
}

// statusOf returns the status of a call whose handler returns err.
func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.FromContextError(err)
}

// httpStatus returns the HTTP status for the code of the error of a call.
func httpStatus(err error) int {
	return cmp.Or(httpStatuses[statusOf(err).Code()], http.StatusInternalServerError)
}

var httpStatuses = map[codes.Code]int{
	codes.OK: 200, codes.Canceled: 499, codes.Unknown: 500, codes.InvalidArgument: 400, codes.DeadlineExceeded: 504,
	codes.NotFound: 404, codes.AlreadyExists: 409, codes.PermissionDenied: 403, codes.ResourceExhausted: 429,
	codes.FailedPrecondition: 400, codes.Aborted: 409, codes.OutOfRange: 400, codes.Unimplemented: 501,
	codes.Internal: 500, codes.Unavailable: 503, codes.DataLoss: 500, codes.Unauthenticated: 401,
}
