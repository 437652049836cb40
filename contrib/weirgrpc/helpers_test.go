package weirgrpc_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/weirgrpc"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

// A service answers every kind of call. work, if not nil, is what a handler does first.
type service struct {
	pb.UnimplementedTestServiceServer
	work func(ctx context.Context) error
	runs atomic.Int64 // of handlers
	got  atomic.Int64 // messages of streams
}

func (s *service) begin(ctx context.Context) error {
	s.runs.Add(1)
	if s.work == nil {
		return nil
	}
	return s.work(ctx)
}

func (s *service) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	return &pb.SimpleResponse{}, s.begin(ctx)
}

func (s *service) StreamingOutputCall(_ *pb.StreamingOutputCallRequest, ss grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]) error {
	if err := s.begin(ss.Context()); err != nil {
		return err
	}
	return ss.Send(&pb.StreamingOutputCallResponse{})
}

func (s *service) StreamingInputCall(ss grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error {
	if err := s.begin(ss.Context()); err != nil {
		return err
	}
	for {
		if _, err := ss.Recv(); err != nil {
			if status.Code(err) != codes.Unknown { // io.EOF
				return err
			}
			return ss.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: int32(s.got.Load())})
		}
		s.got.Add(1)
	}
}

func (s *service) FullDuplexCall(ss grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	if err := s.begin(ss.Context()); err != nil {
		return err
	}
	for {
		if _, err := ss.Recv(); err != nil {
			if status.Code(err) != codes.Unknown {
				return err
			}
			return nil
		}
		s.got.Add(1)
		if err := ss.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// listen serves s behind the interceptors of options, on a port of its own.
func listen(t *testing.T, s *service, options ...grpc.ServerOption) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	pb.RegisterTestServiceServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func unaryServer(calls weirgrpc.Admit) grpc.UnaryServerInterceptor {
	unary, _ := weirgrpc.ServerInterceptors(calls, nil)
	return unary
}

func streamServer(calls, messages weirgrpc.Admit) grpc.StreamServerInterceptor {
	_, stream := weirgrpc.ServerInterceptors(calls, messages)
	return stream
}

// serve limits s by calls and messages, and returns a client.
func serve(t *testing.T, s *service, calls, messages weirgrpc.Admit, options ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	return pb.NewTestServiceClient(dial(t, listen(t, s,
		grpc.ChainUnaryInterceptor(unaryServer(calls)),
		grpc.ChainStreamInterceptor(streamServer(calls, messages))), options...))
}

func dial(t *testing.T, addr string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(addr, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// A kind is a way to call: unary, or one of the streams. The calls last until the server ends them.
type kind struct {
	name string
	call func(ctx context.Context, c pb.TestServiceClient, opts ...grpc.CallOption) error
}

var kinds = []kind{
	{"unary", func(ctx context.Context, c pb.TestServiceClient, opts ...grpc.CallOption) error {
		_, err := c.UnaryCall(ctx, &pb.SimpleRequest{}, opts...)
		return err
	}},
	{"server stream", func(ctx context.Context, c pb.TestServiceClient, opts ...grpc.CallOption) error {
		s, err := c.StreamingOutputCall(ctx, &pb.StreamingOutputCallRequest{}, opts...)
		if err != nil {
			return err
		}
		for {
			if _, err := s.Recv(); err != nil {
				return ended(err)
			}
		}
	}},
	{"client stream", func(ctx context.Context, c pb.TestServiceClient, opts ...grpc.CallOption) error {
		s, err := c.StreamingInputCall(ctx, opts...)
		if err != nil {
			return err
		}
		s.Send(&pb.StreamingInputCallRequest{})
		_, err = s.CloseAndRecv()
		return err
	}},
	{"both", func(ctx context.Context, c pb.TestServiceClient, opts ...grpc.CallOption) error {
		s, err := c.FullDuplexCall(ctx, opts...)
		if err != nil {
			return err
		}
		s.Send(&pb.StreamingOutputCallRequest{})
		s.CloseSend()
		for {
			if _, err := s.Recv(); err != nil {
				return ended(err)
			}
		}
	}},
}

// ended returns nil for io.EOF, which is no error of a call.
func ended(err error) error {
	if _, ok := status.FromError(err); !ok {
		return nil
	}
	return err
}

// by returns the context of a call of a user.
func by(ctx context.Context, user string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-user", user)
}

// stores calls f with each kind of store.
func stores(t *testing.T, f func(t *testing.T, store weir.Store)) {
	t.Run("memory", func(t *testing.T) { f(t, weirtest.Memory()) })
	t.Run("redis", func(t *testing.T) { f(t, weirtest.Redis(t, redistest.Server(t).Addr(), time.Second)) })
}

// must returns a Limiter of rules that all have a key.
func must(t testing.TB, store weir.Store, o weir.Options) *weir.Limiter {
	t.Helper()
	for i := range o.Rules {
		if o.Rules[i].Key == nil {
			o.Rules[i].Key = weir.ByHeader("X-User")
		}
	}
	l, err := weir.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

const aDay = 24 * time.Hour

// spent returns how many units a rule with one limit has spent for the key "ann".
func spent(t *testing.T, store weir.Store, rule string, limit weir.Limit) int64 {
	t.Helper()
	d, err := quota.Peek(t.Context(), store, quota.Charge{Rule: rule, Key: "ann", Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	return limit.Quota - d.Decisions[0].Remaining
}

// free waits until nothing is in flight.
func free(t *testing.T, store weir.Store, rule string, limit weir.Limit) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); spent(t, store, rule, limit) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d units are still in flight", spent(t, store, rule, limit))
		}
	}
}

var (
	daily = algorithms.FixedWindow(1_000_000, 1000*aDay)
	busy  = algorithms.InFlight(100, aDay)
)
