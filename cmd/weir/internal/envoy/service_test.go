package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// stores returns the stores that the service is tested with. "Redis, guarded" is no
// optional.Batcher.
func stores(t *testing.T) map[string]quota.Store {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(10*time.Second, redistest.Server(t).Addr()))
	t.Cleanup(func() { rdb.Close() })
	shared := func(prefix string) quota.Store {
		s, err := redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return map[string]quota.Store{
		"memory":         memstore.New(memstore.Options{}),
		"Redis":          shared("a:"),
		"Redis, guarded": quota.Fallback(quota.Breaker(shared("b:"), quota.BreakerOptions{}), memstore.New(memstore.Options{}), quota.FallbackOptions{}),
	}
}

// A client is a gRPC client that is connected to the service s.
type client struct {
	ratelimit.RateLimitServiceClient
	s        *Service
	conn     *grpc.ClientConn
	registry *prometheus.Registry
}

// dial starts a service, and returns a client of it. The argument text is the content of the file
// of limits.
func dial(t *testing.T, text string, store quota.Store, o Options) *client {
	t.Helper()
	inOne(24*time.Hour, 30*time.Second)
	registry := prometheus.NewPedanticRegistry()
	o.Path = write(t, filepath.Join(t.TempDir(), "f.yaml"), text)
	o.Logger, o.Registerer = slog.New(slog.DiscardHandler), registry
	s, err := NewService(store, o)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := s.Server()
	go server.Serve(ln)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{ratelimit.NewRateLimitServiceClient(conn), s, conn, registry}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func sample(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("testdata/limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// call calls the service and returns the answer as text, such as "OK | OK 19/20 MINUTE": the
// overall code, and then the code and the remaining hits of each descriptor.
func (c *client) call(t *testing.T, domain string, hits uint32, descriptors ...*common.RateLimitDescriptor) string {
	t.Helper()
	resp, err := c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: domain, Descriptors: descriptors, HitsAddend: hits})
	if err != nil {
		t.Fatal(err)
	}
	return describe(t, resp)
}

func describe(t *testing.T, resp *ratelimit.RateLimitResponse) string {
	t.Helper()
	text := resp.OverallCode.String()
	for _, st := range resp.Statuses {
		text += " | " + st.Code.String()
		switch l := st.CurrentLimit; {
		case l != nil:
			text += fmt.Sprintf(" %d/%d %v", st.LimitRemaining, l.RequestsPerUnit, l.Unit)
			if l.Name != "" {
				text += " " + l.Name
			}
			if reset, period := st.DurationUntilReset.AsDuration(), periods[l.Unit]; reset <= 0 || reset > period {
				t.Errorf("the window of a %v ends in %v", l.Unit, reset)
			}
		case st.LimitRemaining == math.MaxUint32:
			text += " unlimited"
		case st.LimitRemaining != 0 || st.DurationUntilReset != nil:
			t.Errorf("a descriptor without a limit has %v", st)
		}
	}
	return text
}

// inOne makes a test fall into one window. The argument left is more time than the test takes. If
// the current window ends earlier than that, inOne sleeps until the next window.
func inOne(window, left time.Duration) {
	if now := window - time.Duration(time.Now().UnixNano())%window; now < left {
		time.Sleep(now)
	}
}

func descriptors(texts []string) (list []*common.RateLimitDescriptor) {
	for _, text := range texts {
		list = append(list, descriptor(text))
	}
	return list
}

// TestDecisions: the service answers as Envoy's service does, with a store in memory and with a
// Redis server.
func TestDecisions(t *testing.T) {
	inOne(time.Minute, 10*time.Second)
	override := descriptor("key1=value1 subkey1=override")
	override.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 2, Unit: typev3.RateLimitUnit_DAY}
	look := descriptor("key2=value2")
	look.HitsAddend = wrapperspb.UInt64(0)
	five := descriptor("key2=value2")
	five.HitsAddend = wrapperspb.UInt64(5)
	back := descriptor("key2=value2")
	back.HitsAddend, back.IsNegativeHits = wrapperspb.UInt64(4), true
	all := descriptor("key2=value2")
	all.HitsAddend = wrapperspb.UInt64(math.MaxUint64)
	allBack := descriptor("key4=c")
	allBack.HitsAddend, allBack.IsNegativeHits = wrapperspb.UInt64(math.MaxUint64), true
	one := func(texts ...string) []*common.RateLimitDescriptor { return descriptors(texts) }
	type calls = []struct {
		descriptors []*common.RateLimitDescriptor
		hits        uint32
		want        string
	}
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			c := dial(t, sample(t), store, Options{})
			for _, tt := range (calls{
				{one("key4=a"), 0, "OK | OK 0/1 DAY"}, // a call without a number of hits has one
				{one("key4=a"), 1, "OVER_LIMIT | OVER_LIMIT 0/1 DAY"},
				{one("key4=b"), 1, "OK | OK 0/1 DAY"}, // another value
				{one("nothing=a"), 1, "OK | OK"},
				{one("key2=value3"), 1, "OK | OK"},
				{one("key6=a"), 7, "OK | OK unlimited"},
				{one("banned=a"), 1, "OVER_LIMIT | OVER_LIMIT 0/0 SECOND"},
				{one("key4=a", "key7=a", "nothing=a", "key6=a"), 1, "OVER_LIMIT | OVER_LIMIT 0/1 DAY | OK 69/70 MINUTE | OK | OK unlimited"},
				{one("key7=a"), 1, "OK | OK 68/70 MINUTE"}, // the hit of a refused call counts
				{one("key7=a", "key7=a"), 1, "OK | OK 67/70 MINUTE | OK 66/70 MINUTE"},
				{one("key7=a"), 60, "OK | OK 6/70 MINUTE"},
				{one("key7=a"), 7, "OVER_LIMIT | OVER_LIMIT 0/70 MINUTE"},
				{one("key7=a"), 1, "OVER_LIMIT | OVER_LIMIT 0/70 MINUTE"}, // a hit that is over the limit counts, too
				{one("key2=shadow"), 20, "OK | OK 0/20 MINUTE"},
				{one("key2=shadow"), 1, "OK | OK 0/20 MINUTE"}, // shadow_mode
				{one("files=files/a"), 2, "OK | OK 0/2 MINUTE"},
				{one("files=files/b"), 1, "OVER_LIMIT | OVER_LIMIT 0/2 MINUTE"}, // share_threshold
				{one("wild=foo1"), 20, "OK | OK 0/20 MINUTE"},
				{one("wild=foo2"), 20, "OK | OK 0/20 MINUTE"}, // no share_threshold
				{one("week=a", "month=a", "year=a"), 1, "OK | OK 4294967294/4294967295 WEEK | OK 4294967294/4294967295 MONTH | OK 4294967294/4294967295 YEAR"},
				{[]*common.RateLimitDescriptor{override}, 1, "OK | OK 1/2 DAY"},
				{[]*common.RateLimitDescriptor{override}, 1, "OK | OK 0/2 DAY"},
				{[]*common.RateLimitDescriptor{override}, 1, "OVER_LIMIT | OVER_LIMIT 0/2 DAY"},
				{[]*common.RateLimitDescriptor{look}, 9, "OK | OK 30/30 MINUTE"},
				{[]*common.RateLimitDescriptor{five, look}, 9, "OK | OK 25/30 MINUTE | OK 25/30 MINUTE"},
				{[]*common.RateLimitDescriptor{back}, 9, "OK | OK 29/30 MINUTE"},
				{[]*common.RateLimitDescriptor{back}, 9, "OK | OK 30/30 MINUTE"}, // giving back hits never makes the count negative
				{[]*common.RateLimitDescriptor{all}, 9, "OVER_LIMIT | OVER_LIMIT 0/30 MINUTE"},
				{[]*common.RateLimitDescriptor{look}, 9, "OVER_LIMIT | OVER_LIMIT 0/30 MINUTE"}, // a call with 0 hits is over the limit if the count is
				{[]*common.RateLimitDescriptor{all}, 9, "OVER_LIMIT | OVER_LIMIT 0/30 MINUTE"},
				{one("key4=c"), math.MaxUint32, "OVER_LIMIT | OVER_LIMIT 0/1 DAY"},
				{[]*common.RateLimitDescriptor{allBack}, 9, "OK | OK 1/1 DAY"}, // gives back at most what was spent
				{one("key4=c"), 1, "OK | OK 0/1 DAY"},
				{[]*common.RateLimitDescriptor{{}}, 1, "OK | OK"}, // no entries
			}) {
				if len(tt.descriptors) == 2 && name == "Redis, guarded" { // both have the same count, and their order within a call is not fixed
					c.call(t, "test-domain", tt.hits, tt.descriptors[0])
					c.call(t, "test-domain", tt.hits, tt.descriptors[1])
					continue
				}
				if got := c.call(t, "test-domain", tt.hits, tt.descriptors...); got != tt.want {
					t.Errorf("%v, %d hits: got %s, want %s", tt.descriptors, tt.hits, got, tt.want)
				}
			}
			if got := c.call(t, "unknown", 1, override); got != "OK | OK" {
				t.Errorf("an unknown domain: got %s", got)
			}
		})
	}
}

// TestBusy: a call that a busy store did not decide is refused, because a client could otherwise
// flood the store to remove its limit. So is one of a store that can never work. Limits in shadow
// refuse nothing.
func TestBusy(t *testing.T) {
	const limits = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 9}}\n- {key: s, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 9}}\n"
	for _, tt := range []struct {
		err        error
		o          Options
		descriptor string
		want       string
	}{
		{fmt.Errorf("secret: %w", quota.ErrBusy), Options{}, "a=b", "OVER_LIMIT OVER_LIMIT 1"},
		{fmt.Errorf("secret: %w", quota.ErrUnusable), Options{}, "a=b", "OVER_LIMIT OVER_LIMIT "},
		{quota.ErrBusy, Options{}, "s=b", "OK OK "},
		{quota.ErrBusy, Options{Shadow: true}, "a=b", "OK OVER_LIMIT "},
		{errors.New("down"), Options{}, "a=b", "Unavailable"},
	} {
		failing := weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return tt.err })
		c := dial(t, limits, failing, tt.o)
		resp, err := c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "d", Descriptors: descriptors([]string{tt.descriptor})})
		got := status.Code(err).String()
		if err == nil {
			got = fmt.Sprintf("%v %v ", resp.OverallCode, resp.Statuses[0].Code)
			for _, h := range resp.ResponseHeadersToAdd {
				got += h.Value
			}
		}
		if got != tt.want {
			t.Errorf("%v, %s: got %s, want %s", tt.err, tt.descriptor, got, tt.want)
		}
	}
}

// TestShadow: with the option Shadow all calls are answered with OK, and hits are counted.
func TestShadow(t *testing.T) {
	c := dial(t, sample(t), memstore.New(memstore.Options{}), Options{Shadow: true})
	c.call(t, "test-domain", 1, descriptor("key4=a"))
	if got := c.call(t, "test-domain", 1, descriptor("key4=a")); got != "OK | OVER_LIMIT 0/1 DAY" {
		t.Errorf("got %s", got)
	}
	if got := c.metrics(t); !strings.Contains(got, "ratelimit_service_global_shadow_mode 1\n") {
		t.Errorf("got the metrics\n%s", got)
	}
}

// A broken store panics if its field panics is true, and otherwise returns an error.
type broken struct{ panics atomic.Bool }

func (b *broken) Take(context.Context, *quota.Transaction) error {
	if b.panics.Load() {
		panic("a bug")
	}
	return errors.New("dial tcp 10.0.0.1: secret")
}

// TestMistakenCalls: an invalid call, and a store that fails or panics, give the right gRPC
// code. The client does not get the text of the error of the store.
func TestMistakenCalls(t *testing.T) {
	store := &broken{}
	c := dial(t, sample(t), store, Options{})
	limited := descriptor("key4=a")
	noUnit := descriptor("key4=a")
	noUnit.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}
	badUnit := descriptor("key4=a")
	badUnit.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 77}
	for _, tt := range []struct {
		r    *ratelimit.RateLimitRequest
		code codes.Code
		want string
	}{
		{&ratelimit.RateLimitRequest{}, codes.InvalidArgument, "the domain is empty"},
		{&ratelimit.RateLimitRequest{Domain: "test-domain"}, codes.InvalidArgument, "there are no descriptors"},
		{&ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: slices.Repeat([]*common.RateLimitDescriptor{limited}, 101)}, codes.InvalidArgument, "there are more than 100 descriptors"},
		{&ratelimit.RateLimitRequest{Domain: strings.Repeat("d", 100_000), Descriptors: []*common.RateLimitDescriptor{limited}}, codes.ResourceExhausted, "larger than max"},
		{&ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: []*common.RateLimitDescriptor{noUnit}}, codes.InvalidArgument, "no unit"},
		{&ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: []*common.RateLimitDescriptor{badUnit}}, codes.InvalidArgument, "no unit"},
		{&ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: []*common.RateLimitDescriptor{limited}}, codes.Unavailable, "the store of the counts is unavailable"},
		{&ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: []*common.RateLimitDescriptor{limited, limited}}, codes.Unavailable, "the store of the counts is unavailable"},
		{&ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: []*common.RateLimitDescriptor{descriptor("key4=" + strings.Repeat("x", 5<<20))}}, codes.ResourceExhausted, "larger than max"},
	} {
		_, err := c.ShouldRateLimit(t.Context(), tt.r)
		if status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want %v, %s", err, tt.code, tt.want)
		}
	}
	store.panics.Store(true)
	if _, err := c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: descriptors([]string{"key4=a"})}); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "a bug\n") {
		t.Errorf("a panic: got %v, want Internal", err)
	}
	if _, err := c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: descriptors([]string{"key4=a", "key4=b"})}); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "bug") {
		t.Errorf("a panic in one of several descriptors: got %v, want Unavailable", err)
	}
}

// raw is a codec that sends and receives messages as bytes.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = raw{}

// TestBadBytes: a call whose bytes are no message, or whose text is not UTF-8, gets an error.
// The service answers the next call.
func TestBadBytes(t *testing.T) {
	c := dial(t, sample(t), memstore.New(memstore.Options{}), Options{})
	domain := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "test-domain")
	entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "key4\xff")
	entries := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
	for _, message := range [][]byte{
		[]byte("\xff\xff\xff"),
		protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff"),
		protowire.AppendBytes(protowire.AppendTag(domain, 2, protowire.BytesType), entries),
	} {
		var answer []byte
		err := c.conn.Invoke(t.Context(), ratelimit.RateLimitService_ShouldRateLimit_FullMethodName, message, &answer, grpc.ForceCodecV2(raw{}))
		if err == nil {
			t.Errorf("%q: got no error", message)
		}
	}
	if got := c.call(t, "test-domain", 1, descriptor("key4=a")); got != "OK | OK 0/1 DAY" {
		t.Errorf("afterwards: got %s", got)
	}
}

// TestHugeDescriptors: the service decides calls with 1,000 descriptors, with values of 1 MiB and
// with 10,000 entries. Long values that differ in their last byte have separate counts.
func TestHugeDescriptors(t *testing.T) {
	for name, store := range stores(t) {
		c := dial(t, sample(t), store, Options{})
		var many []*common.RateLimitDescriptor
		for i := range maxDescriptors {
			many = append(many, descriptor(fmt.Sprint("key4=", i)))
		}
		for _, want := range []string{"OK | OK 0/1 DAY | OK 0/1 DAY", "OVER_LIMIT | OVER_LIMIT 0/1 DAY | OVER_LIMIT 0/1 DAY"} {
			if got := c.call(t, "test-domain", 1, many...); !strings.HasPrefix(got, want) || strings.Count(got, "0/1 DAY") != maxDescriptors {
				t.Errorf("%s: %d descriptors: got %.200s…", name, maxDescriptors, got)
			}
		}
		long := strings.Repeat("x", 1<<15)
		for _, tt := range []struct{ value, want string }{
			{long, "OK | OK 0/1 DAY"}, {long + "y", "OK | OK 0/1 DAY"}, {long, "OVER_LIMIT | OVER_LIMIT 0/1 DAY"},
		} {
			if got := c.call(t, "test-domain", 1, descriptor("key4="+tt.value)); got != tt.want {
				t.Errorf("%s: a value of %d bytes: got %s, want %s", name, len(tt.value), got, tt.want)
			}
		}
		deep := &common.RateLimitDescriptor{}
		for range 2000 {
			deep.Entries = append(deep.Entries, &common.RateLimitDescriptor_Entry{Key: "key1", Value: "value1"})
		}
		if got := c.call(t, "test-domain", 1, deep); got != "OK | OK" {
			t.Errorf("%s: 10,000 entries: got %s", name, got)
		}
	}
}

// A slow store waits for a value from its channel decide before it decides. It returns an error
// if its context can be canceled.
type slow struct {
	quota.Store
	asked, decide, decided chan bool
}

func (s *slow) Take(ctx context.Context, t *quota.Transaction) error {
	s.asked <- true
	<-s.decide
	defer func() { s.decided <- true }()
	if ctx.Done() != nil {
		return context.Canceled
	}
	return s.Store.Take(ctx, t)
}

// TestConnectionAge: after Options.ConnectionAge a client is asked to connect again, and its next
// call is answered.
func TestConnectionAge(t *testing.T) {
	c := dial(t, sample(t), memstore.New(memstore.Options{}), Options{ConnectionAge: 50 * time.Millisecond})
	c.call(t, "test-domain", 1, descriptor("nothing=a"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if !c.conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Error("the connection was not closed")
	}
	if resp, err := c.ShouldRateLimit(ctx, &ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: descriptors([]string{"key4=a"})}, grpc.WaitForReady(true)); err != nil || resp.Statuses[0].CurrentLimit == nil {
		t.Errorf("afterwards: got %v, %v", resp, err)
	}
}

// TestCanceled: a call that the client cancels is charged.
func TestCanceled(t *testing.T) {
	store := &slow{memstore.New(memstore.Options{}), make(chan bool), make(chan bool), make(chan bool)}
	c := dial(t, sample(t), store, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := c.ShouldRateLimit(ctx, &ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: descriptors([]string{"key4=a"})})
		done <- err
	}()
	<-store.asked
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("got %v, want Canceled", err)
	}
	store.decide <- true
	<-store.decided
	go func() { <-store.asked; store.decide <- true; <-store.decided }()
	if got := c.call(t, "test-domain", 1, descriptor("key4=a")); got != "OVER_LIMIT | OVER_LIMIT 0/1 DAY" {
		t.Errorf("got %s", got)
	}
}

// TestReload: a changed file applies to the next call and keeps counts and metrics. A file with
// a mistake, or a missing file, changes nothing. No call fails during reloads.
func TestReload(t *testing.T) {
	file := func(n int) string {
		return fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]", n)
	}
	c := dial(t, file(1), memstore.New(memstore.Options{}), Options{})
	for _, step := range []struct {
		text, want string
		fails      bool
	}{
		{file(1), "OK | OK 0/1 DAY", false},
		{file(3), "OK | OK 1/3 DAY", false},
		{"domain: [", "OK | OK 0/3 DAY", true},
		{"domain: [", "OVER_LIMIT | OVER_LIMIT 0/3 DAY", false}, // Reload returns a mistake once
		{file(9), "OK | OK 4/9 DAY", false},                     // the refused hit counts
	} {
		write(t, c.s.o.Path, step.text)
		if err := c.s.Reload(); (err != nil) != step.fails {
			t.Errorf("%s: got %v", step.text, err)
		}
		if got := c.call(t, "d", 1, descriptor("k=a")); got != step.want {
			t.Errorf("%s: got %s, want %s", step.text, got, step.want)
		}
	}
	loads, failures := value(t, c.s.loads), value(t, c.s.failures)
	if n := value(t, c.s.config.Load().limits[0].total); n != 5 || loads != 3 || failures != 1 {
		t.Errorf("got %d hits, %d loads and %d failures, want 5, 3 and 1", n, loads, failures)
	}
	os.Remove(c.s.o.Path)
	if err := c.s.Reload(); err == nil {
		t.Error("got no error for a missing file")
	}

	write(t, c.s.o.Path, file(1000))
	var ok atomic.Int64
	call := func() {
		resp, err := c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "d", Descriptors: descriptors([]string{"k=b"})})
		if err != nil {
			t.Error(err)
		} else if resp.OverallCode == ratelimit.RateLimitResponse_OK {
			ok.Add(1)
		}
	}
	reload := func(i int) {
		write(t, c.s.o.Path, file(1000+i%2))
		if err := c.s.Reload(); err != nil {
			t.Error(err)
		}
	}
	weirtest.Together(1+8, func(g int) {
		for i := range 100 {
			if g == 0 {
				reload(i)
			} else {
				call()
			}
		}
	})
	if ok.Load() < 100 { // the limit is 9 until the first reload
		t.Errorf("%d of 800 calls were answered with OK", ok.Load())
	}
}

// TestSwap: a directory is a symbolic link that is replaced, as a Kubernetes volume and Envoy's
// service do it. Reload reads the files of the new directory, and an empty one changes nothing.
func TestSwap(t *testing.T) {
	c := dial(t, "domain: d", memstore.New(memstore.Options{}), Options{})
	base := t.TempDir()
	c.s.o.Path = filepath.Join(base, "current")
	for i, step := range []struct {
		quota int // 0: no file
		want  string
	}{{2, "OK | OK 1/2 DAY"}, {3, "OK | OK 1/3 DAY"}, {0, "OK | OK 0/3 DAY"}} {
		dir := filepath.Join(base, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if step.quota > 0 {
			write(t, filepath.Join(dir, "f.yaml"), fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]", step.quota))
		}
		if err := os.Symlink(dir, c.s.o.Path+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(c.s.o.Path+".new", c.s.o.Path); err != nil {
			t.Fatal(err)
		}
		if err := c.s.Reload(); (err != nil) != (step.quota == 0) {
			t.Errorf("a quota of %d: got %v", step.quota, err)
		}
		if got := c.call(t, "d", 1, descriptor("k=a")); got != step.want {
			t.Errorf("a quota of %d: got %s, want %s", step.quota, got, step.want)
		}
	}
}

// TestWatch: Watch loads a changed file by itself, and logs a mistake once.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which Watch reads no file that is only half written
		var log weirtest.Log
		path := write(t, filepath.Join(t.TempDir(), "f.yaml"), "domain: d")
		s, err := NewService(memstore.New(memstore.Options{}), Options{Path: path, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		go s.Watch(t.Context())
		write(t, path, "domain: [")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := log.String(); value(t, s.failures) != 1 || strings.Count(got, "not reloaded") != 1 || !strings.Contains(got, "f.yaml:1:") {
			t.Errorf("a mistake: got %d failures and the log\n%s", value(t, s.failures), got)
		}
		write(t, path, "domain: e")
		time.Sleep(time.Second)
		synctest.Wait()
		if s.config.Load().domains["e"] == nil || value(t, s.failures) != 1 {
			t.Errorf("a change: got %d failures and the log\n%s", value(t, s.failures), &log)
		}
	})
}

// TestConcurrent: concurrent calls of two services that share a store are answered with OK
// exactly as often as the limit allows.
func TestConcurrent(t *testing.T) {
	for name, store := range stores(t) {
		clients := []*client{dial(t, sample(t), store, Options{}), dial(t, sample(t), store, Options{Over: 1})}
		var ok atomic.Int64
		weirtest.Together(16, func(i int) {
			for range 10 {
				resp, err := clients[i%2].ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: descriptors([]string{"key5=value5", "key3=x"})})
				if err != nil {
					t.Error(err)
				} else if resp.Statuses[0].Code == ratelimit.RateLimitResponse_OK {
					ok.Add(1)
				}
			}
		})
		if ok.Load() != 15 {
			t.Errorf("%s: %d calls were within a limit of 15", name, ok.Load())
		}
	}
}

// TestStreams: a connection cannot open any number of streams, which take memory even if nothing is sent
// in them.
func TestStreams(t *testing.T) {
	c := dial(t, "domain: a\n", memstore.New(memstore.Options{}), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	desc := &grpc.StreamDesc{ClientStreams: true}
	for i := range maxStreams + 1 {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		if i == maxStreams { // the client waits for one to end
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
		}
		t.Cleanup(cancel)
		_, err := c.conn.NewStream(ctx, desc, ratelimit.RateLimitService_ShouldRateLimit_FullMethodName)
		if (err == nil) != (i < maxStreams) {
			t.Fatalf("stream %d: got error %v, want one from stream %d on", i, err, maxStreams)
		}
	}
}
