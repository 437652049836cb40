package envoy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
)

// resources returns resources of a control plane. Each text is that of one: its domain, and then
// descriptors, each with a path of keys (key or key=value, separated by >), a number and a unit, such as
// "first-listener: a=b>c 5 SECOND, d 1 YEAR shadow".
func resources(t *testing.T, texts ...string) (list []types.Resource) {
	for i, text := range texts {
		domain, rest, _ := strings.Cut(text, ": ")
		r := &config.RateLimitConfig{Name: fmt.Sprint("r", i), Domain: domain}
		for d := range strings.SplitSeq(rest, ", ") {
			fields := strings.Fields(d)
			if len(fields) < 3 {
				t.Fatalf("%q is no descriptor", d)
			}
			n, err := strconv.ParseUint(fields[1], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			at := &r.Descriptors
			for name := range strings.SplitSeq(fields[0], ">") {
				key, value, _ := strings.Cut(name, "=")
				i := slices.IndexFunc(*at, func(d *config.RateLimitDescriptor) bool { return d.Key == key && d.Value == value })
				if i < 0 {
					*at = append(*at, &config.RateLimitDescriptor{Key: key, Value: value})
					i = len(*at) - 1
				}
				leaf := (*at)[i]
				if at = &leaf.Descriptors; strings.HasSuffix(fields[0], name) {
					leaf.RateLimit = &config.RateLimitPolicy{RequestsPerUnit: uint32(n), Unit: config.RateLimitUnit(config.RateLimitUnit_value[fields[2]])}
					leaf.ShadowMode = slices.Contains(fields, "shadow")
				}
			}
		}
		list = append(list, r)
	}
	return list
}

// A plane is a control plane of the official library, which records the answers of its client.
type plane struct {
	cache  cache.SnapshotCache
	server *grpc.Server
	addr   string

	mu      sync.Mutex
	version int
	answers []string // "ack 1", "nack 2: …"
}

// newPlane returns a plane that does not listen yet.
func newPlane(t *testing.T) *plane {
	return &plane{cache: cache.NewSnapshotCache(false, cache.IDHash{}, nil), addr: redistest.FreeAddr()}
}

// start listens on the address of p, which stays the same.
func (p *plane) start(t *testing.T) {
	ln, err := net.Listen("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	p.server = grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(p.server, server.NewServer(context.Background(), p.cache,
		server.CallbackFuncs{StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			switch {
			case r.ErrorDetail != nil:
				p.answers = append(p.answers, "nack, has "+r.VersionInfo+": "+r.ErrorDetail.Message)
			case r.ResponseNonce != "":
				p.answers = append(p.answers, "ack "+r.VersionInfo)
			}
			return nil
		}}))
	go p.server.Serve(ln)
	t.Cleanup(p.server.Stop)
}

// send sends a new version to the service.
func (p *plane) send(t *testing.T, list []types.Resource) {
	p.version++
	snapshot, err := cache.NewSnapshot(strconv.Itoa(p.version), map[resource.Type][]types.Resource{resource.RateLimitConfigType: list})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cache.SetSnapshot(t.Context(), "node", snapshot); err != nil {
		t.Fatal(err)
	}
}

// last returns the last answer of the service.
func (p *plane) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.answers) == 0 {
		return ""
	}
	return p.answers[len(p.answers)-1]
}

// waits waits until the last answer of the service begins with want.
func (p *plane) waits(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.HasPrefix(p.last(), want); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got the last of %d answers %q, want %q", len(p.answers), p.last(), want)
		}
	}
}

// newXDS returns a service whose limits come from a control plane.
func newXDS(t *testing.T, x XDS, log slog.Handler) *Service {
	t.Helper()
	s, err := NewService(memstore.New(memstore.Options{}), Options{XDS: &x, Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// watchPlane returns a service that gets its limits from p until the test ends, and its log.
func watchPlane(t *testing.T, p *plane) (*Service, *weirtest.Log) {
	t.Helper()
	log := new(weirtest.Log)
	s := newXDS(t, XDS{Address: p.addr, Node: "node", Credentials: insecure.NewCredentials()}, slog.NewTextHandler(log, nil))
	ended := make(chan bool)
	go func() { s.Watch(t.Context()); close(ended) }()
	t.Cleanup(func() { <-ended }) // the context of the test has ended
	return s, log
}

// TestXDS: a service starts before its control plane, is not ready, gets limits, rejects what has an
// error, keeps its limits and its counts without the control plane, and finds it again.
func TestXDS(t *testing.T) {
	inOne(time.Hour, time.Minute)
	p := newPlane(t) // it starts later
	s, log := watchPlane(t, p)
	health := func() string {
		r, err := s.Health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.String()
	}
	call := func(domain string, descriptor string) ratelimit.RateLimitResponse_Code {
		r, err := s.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: domain, Descriptors: descriptors([]string{descriptor})})
		if err != nil {
			t.Fatal(err)
		}
		return r.OverallCode
	}
	calls := func(what, domain, descriptor string, want ...ratelimit.RateLimitResponse_Code) {
		t.Helper()
		for i, want := range want {
			if got := call(domain, descriptor); got != want {
				t.Errorf("%s: call %d: got %v, want %v", what, i, got, want)
			}
		}
	}
	const ok, over = ratelimit.RateLimitResponse_OK, ratelimit.RateLimitResponse_OVER_LIMIT
	if s.Loaded() || health() != "NOT_SERVING" {
		t.Errorf("before the first limits: loaded %v, %s", s.Loaded(), health())
	}
	calls("no limits yet", "a", "k=v", ok, ok, ok)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(log.String(), "there are no limits yet"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log lacks the missing control plane:\n%s", log)
		}
	}
	p.start(t)
	p.send(t, resources(t, "a: k 2 HOUR", "b: k 1 HOUR"))
	p.waits(t, "ack 1")
	if !s.Loaded() || health() != "SERVING" {
		t.Errorf("after the first limits: loaded %v, %s", s.Loaded(), health())
	}
	calls("the first limits", "a", "k=v", ok, ok, over)
	p.send(t, resources(t, "a: k 1 HOUR", "a: k 2 HOUR", "c: x 1 UNKNOWN"))
	p.waits(t, `nack, has 1: resource "r1": $.domain: another file has the domain a as well`)
	if answer := p.last(); !strings.Contains(answer, `resource "r2": $.descriptors[0].rate_limit: unit is "UNKNOWN"`) {
		t.Errorf("the answer lacks an error: %s", answer)
	}
	calls("after an update with errors", "b", "k=v", ok, over)
	p.server.Stop()
	calls("without a control plane", "b", "k=w", ok, over)
	p.start(t)
	p.send(t, resources(t, "a: k 4 HOUR"))
	p.waits(t, "ack 3")
	calls("after an update", "a", "k=v", ok, over) // three counted, so the fourth is the last
	calls("a domain that is gone", "b", "k=v", ok, ok)
	p.send(t, nil)
	p.waits(t, "ack 4")
	calls("no domain", "a", "k=v", ok, ok, ok)
	if n := len(p.answers); n > 30 { // the server sends a rejected update again at once
		t.Errorf("got %d answers, want a pause between two that reject the same update", n)
	}
	if loads, failures := value(t, s.loads), value(t, s.failures); !s.Loaded() || failures != 1 || loads != 3 {
		t.Errorf("got %d loads, %d failures; want 3, 1", loads, failures)
	}
	if !strings.Contains(log.String(), "the last limits stay in force") {
		t.Errorf("the log lacks the control plane that ended:\n%s", log)
	}
}

// TestManyFaults: an update with more errors than a control plane can receive is rejected, and its
// errors are logged once, also if the stream then breaks.
func TestManyFaults(t *testing.T) {
	p := newPlane(t)
	p.start(t)
	_, log := watchPlane(t, p)
	faulty := &config.RateLimitConfig{Name: "r", Domain: "d"}
	for range 30_000 {
		faulty.Descriptors = append(faulty.Descriptors, &config.RateLimitDescriptor{Key: strings.Repeat("ä", 100)})
	}
	p.send(t, []types.Resource{faulty})
	p.waits(t, "nack, has : resource \"r\": $.descriptors[1]: two descriptors have the name d.ä")
	p.server.Stop()
	p.mu.Lock()
	p.answers = nil
	p.mu.Unlock()
	p.start(t)
	p.waits(t, "nack, has : ")
	p.send(t, resources(t, "d: a 5 SECOND"))
	p.waits(t, "ack 2")
	if n := strings.Count(log.String(), "limits not reloaded"); n != 1 || len(log.String()) > 100<<10 {
		t.Errorf("the errors are logged %d times, in %d bytes of log", n, len(log.String()))
	}
}

// TestGatewayShapes: what Envoy Gateway makes of its policies is loaded: a key that has its value as a
// name, one without a value, masked addresses, levels without a limit, rules in shadow, months and years.
func TestGatewayShapes(t *testing.T) {
	s := newXDS(t, XDS{}, slog.DiscardHandler)
	var list []*anypb.Any
	for _, r := range resources(t,
		"first-listener: first-route=first-route>rule-0-match-0=rule-0-match-0>rule-0-match-1=rule-0-match-1>masked_remote_address=192.168.0.0/16 5 SECOND, "+
			"first-route=first-route>rule-1-match-0=rule-1-match-0>masked_remote_address=192.168.0.0/16>remote_address 10 MINUTE, "+
			"first-route=first-route>rule-2-match--1=rule-2-match--1 15 HOUR shadow, second-route=second-route>rule-0-match-0 1 MONTH, third-route=third-route>rule-0-match-0=a 1 YEAR, "+
			"fourth-route=fourth-route>rule-0-match-0=a 1 WEEK",
		"ns/policy: ns/policy/rule/0=ns/policy/rule/0>rule-0-match-0=rule-0-match-0 3 DAY",
	) {
		m, err := anypb.New(r)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	if err := s.apply(list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range s.config.Load().limits {
		got = append(got, fmt.Sprint(l.proto.RequestsPerUnit, l.proto.Unit, l.shadow))
	}
	if want := "[5 SECOND false 10 MINUTE false 15 HOUR true 1 MONTH false 1 YEAR false 1 WEEK false 3 DAY false]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	deep := &config.RateLimitConfig{Domain: "deep", Descriptors: []*config.RateLimitDescriptor{{Key: "a"}}}
	for at, i := deep.Descriptors[0], 0; i < 2*maxDepth; i++ {
		at.Descriptors = []*config.RateLimitDescriptor{{Key: "a"}}
		at = at.Descriptors[0]
	}
	m, _ := anypb.New(deep)
	if err := s.apply([]*anypb.Any{m}); err == nil || !strings.Contains(err.Error(), "nested too deeply") {
		t.Errorf("a deep resource: got %v", err)
	}
	if err := s.apply([]*anypb.Any{{TypeUrl: "type.googleapis.com/x.Y"}}); err == nil {
		t.Error("a resource of another type: got no error")
	}
}

// TestOwnAlgorithms: the metadata of a descriptor choose another algorithm, also a calendar with a time
// zone, and an error says what is wrong with them.
func TestOwnAlgorithms(t *testing.T) {
	descriptor := func(n uint32, unit string, own any) []*anypb.Any {
		metadata, err := structpb.NewStruct(map[string]any{ownField: own})
		if err != nil {
			t.Fatal(err)
		}
		m, err := anypb.New(&config.RateLimitConfig{Domain: "d", Descriptors: []*config.RateLimitDescriptor{{Key: "k", Metadata: metadata,
			RateLimit: &config.RateLimitPolicy{RequestsPerUnit: n, Unit: config.RateLimitUnit(config.RateLimitUnit_value[unit])}}}})
		if err != nil {
			t.Fatal(err)
		}
		return []*anypb.Any{m}
	}
	type fields = map[string]any
	for _, tt := range []struct {
		n    uint32
		unit string
		own  any
		want string // of the limit, or of the error
	}{
		{5, "MINUTE", fields{"algorithm": "gcra"}, "5 per 1m0s (gcra)"},
		{5, "MINUTE", fields{"algorithm": "token-bucket", "burst": 20}, "5 per 1m0s, 20 at once (token-bucket)"},
		{5, "HOUR", fields{"algorithm": "sliding-log"}, "5 per 1h0m0s (sliding-log)"},
		{5, "MONTH", fields{"timezone": "Europe/Berlin"}, "month: 5 per 720h0m0s (calendar)"},
		{5, "DAY", fields{"algorithm": "calendar"}, "day: 5 per 24h0m0s (calendar)"},
		{5, "YEAR", fields{"algorithm": "calendar"}, "a calendar needs a day, week or month"},
		{5, "DAY", fields{"timezone": "Europe/Berlni"}, "unknown time zone Europe/Berlni"},
		{5, "DAY", fields{"timezone": "UTC", "algorithm": "gcra"}, "only the algorithm calendar has a timezone"},
		{5, "DAY", fields{"algorithm": "in-flight"}, "want calendar, "},
		{5, "DAY", fields{"algorithm": 5}, "algorithm is 5"},
		{5, "DAY", fields{"algorithm": "gcra", "burst": 0.5}, "burst is 0.5; want 1 to"},
		{5, "DAY", fields{"algoritm": "gcra"}, "unknown field algoritm"},
		{5, "DAY", "gcra", "want a mapping"},
		{0, "DAY", fields{"algorithm": "gcra"}, "quota"},
	} {
		s := newXDS(t, XDS{}, slog.DiscardHandler)
		got := ""
		if err := s.apply(descriptor(tt.n, tt.unit, tt.own)); err != nil {
			got = err.Error()
		} else {
			got = s.config.Load().limits[0].own.String()
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%d %s %v: got %s, want %s", tt.n, tt.unit, tt.own, got, tt.want)
		}
	}
}

// TestOwnDecisions: a limit with another algorithm refuses by it, in files too: refused hits are not
// counted, and the answer says when the next one is allowed.
func TestOwnDecisions(t *testing.T) {
	const text = `
domain: d
descriptors:
- {key: gcra, rate_limit: {requests_per_unit: 2, unit: hour}, metadata: {weir: {algorithm: gcra, burst: 3}}}
- {key: month, rate_limit: {requests_per_unit: 2, unit: month}, metadata: {weir: {timezone: Pacific/Kiritimati}}}
- {key: shadow, rate_limit: {requests_per_unit: 2, unit: hour}, metadata: {weir: {algorithm: sliding-log}}, shadow_mode: true}
`
	for name, store := range stores(t) {
		c := dial(t, text, store, Options{Over: 10})
		call := func(key string, hits uint32) *ratelimit.RateLimitResponse {
			t.Helper()
			r, err := c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "d", Descriptors: descriptors([]string{key + "=v"}), HitsAddend: hits})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		retry := func(r *ratelimit.RateLimitResponse) int64 {
			for _, h := range r.ResponseHeadersToAdd {
				if h.Key == retryAfter {
					n, _ := strconv.ParseInt(h.Value, 10, 64)
					return n
				}
			}
			return 0
		}
		for _, want := range []string{"OK 2", "OK 1", "OK 0", "OVER_LIMIT 0", "OVER_LIMIT 0"} {
			r := call("gcra", 1)
			if got := fmt.Sprint(r.OverallCode, " ", r.Statuses[0].LimitRemaining); got != want {
				t.Errorf("%s, gcra: got %s, want %s", name, got, want)
			}
			if n := retry(r); r.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT && (n < 1700 || n > 1800) {
				t.Errorf("%s, gcra: got Retry-After %d, want half an hour, however many were refused", name, n)
			}
		}
		if r := call("gcra", 4); r.OverallCode != ratelimit.RateLimitResponse_OVER_LIMIT || retry(r) != 0 {
			t.Errorf("%s: more hits than the burst: got %v, Retry-After %d; want OVER_LIMIT and none", name, r.OverallCode, retry(r))
		}
		zone, err := time.LoadLocation("Pacific/Kiritimati")
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now().In(zone)
		left := int64(time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, zone).Sub(now) / time.Second)
		call("month", 2)
		if r := call("month", 1); r.OverallCode != ratelimit.RateLimitResponse_OVER_LIMIT || retry(r) < left-60 || retry(r) > left+1 {
			t.Errorf("%s, month: got %v, Retry-After %d; want the %d s until the month ends there", name, r.OverallCode, retry(r), left)
		}
		for range 4 {
			if r := call("shadow", 1); r.OverallCode != ratelimit.RateLimitResponse_OK {
				t.Errorf("%s, shadow: got %v", name, r)
			}
		}
		if m := c.metrics(t); !strings.Contains(m, `over_limit{domain="d",key1="gcra",key2=""} 6`) {
			t.Errorf("%s: the metrics lack the 6 hits over the limit:\n%s", name, m)
		}
	}
}

// TestGateway: the limits that Envoy Gateway translates from its resources load, with all their numbers.
func TestGateway(t *testing.T) {
	paths, err := filepath.Glob("testdata/gateway/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	domains := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var list []*anypb.Any
		for doc := range strings.SplitSeq(string(text), "\n---\n") {
			data, err := yaml.YAMLToJSON([]byte(doc))
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			c := &config.RateLimitConfig{}
			if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, c); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			resource, err := anypb.New(c)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, resource)
		}
		domains += len(list)
		s := newXDS(t, XDS{}, slog.DiscardHandler)
		if err := s.apply(list); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		limits := len(s.config.Load().limits)
		if want := strings.Count(string(text), "requests_per_unit:"); limits != want || want == 0 {
			t.Errorf("%s: got %d limits, want %d", path, limits, want)
		}
	}
	if domains != 32 {
		t.Errorf("got %d configurations, want 32", domains)
	}
}
