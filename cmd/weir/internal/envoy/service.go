package envoy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/panics"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
)

// Options are the options of NewService. The zero Options are ready to use.
type Options struct {
	Merge    bool         // allow several files to have descriptors of the same domain
	Shadow   bool         // count hits, but answer OK instead of OVER_LIMIT
	Headers  bool         // tell Envoy to add RateLimit-Limit, -Remaining and -Reset to responses
	Metadata bool         // answer with dynamic metadata: the descriptors, and the results of quota_mode
	Logger   *slog.Logger // nil means slog.Default()
}

// A Service answers the calls of Envoy's rate limit filter. It is safe for concurrent use.
type Service struct {
	ratelimit.UnimplementedRateLimitServiceServer

	Health *health.Server // the health service of the gRPC server; it reports SERVING until Health.Shutdown is called

	path  string
	store quota.Store
	o     Options

	mu        sync.Mutex // held while files are loaded
	data      []byte     // the files as last read, even if they had an error
	config    atomic.Pointer[Config]
	overrides *stats // counts the hits of all limits that come with descriptors of calls

	storeErrors, callErrors, loads, failures atomic.Uint64

	undecided *slog.Logger // gets a line for calls that the store could not decide
}

// NewService returns a service that counts in store. path is a directory of files of limits, or
// one file. NewService returns an error if the files cannot be loaded.
func NewService(path string, store quota.Store, o Options) (*Service, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Service{Health: health.NewServer(), path: path, store: store, o: o, overrides: newStats([]string{"", "override"}), undecided: sparse.Logger(o.Logger)}
	s.config.Store(&Config{})
	return s, s.Reload()
}

// Reload loads the files if they have changed since the last call. After an error the limits
// that were loaded before stay in force. An error in the files is returned once: further calls
// return nil until the files change.
func (s *Service) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	files, err := readFiles(s.path)
	if err != nil {
		return err
	}
	var data []byte
	for _, f := range files {
		data = append(append(append(data, f.path...), 0), f.data...)
		data = append(data, 0)
	}
	if s.data != nil && bytes.Equal(data, s.data) {
		return nil
	}
	s.data = data
	c, err := parse(files, s.o.Merge)
	if err != nil {
		s.failures.Add(1)
		return err
	}
	old := map[[3]string]*stats{}
	for _, l := range s.config.Load().limits {
		old[[3]string{l.domain, l.key1, l.key2}] = l.stats
	}
	for _, l := range c.limits {
		if kept := old[[3]string{l.domain, l.key1, l.key2}]; kept != nil {
			l.stats = kept
		}
	}
	s.config.Store(c)
	s.loads.Add(1)
	s.o.Logger.Info("envoy: limits loaded", "file", s.path, "files", len(files), "loaded", len(c.limits))
	return nil
}

// Watch reloads the files when they change, until ctx ends. It reads the files once a second,
// because this also works for network file systems and mounted ConfigMaps.
func (s *Service) Watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.Reload()
		if err == nil {
			last = ""
		} else if err.Error() != last {
			last = err.Error()
			s.o.Logger.Error("envoy: limits not reloaded", "err", err)
		}
	}
}

// maxDescriptors is the largest number of descriptors in a call. Envoy sends a few.
const maxDescriptors = 1000

// An ask is one descriptor of a call, with the limit that applies to it.
type ask struct {
	*limit           // nil if no limit applies, or if the limit is unlimited
	key       []byte // the key of the counter in the store
	hits      uint64
	giveBack  bool
	unlimited bool
	t         quota.Transaction
}

// ShouldRateLimit decides a call of Envoy. If the store is down, ShouldRateLimit returns an error,
// and failure_mode_deny in Envoy's configuration decides whether the request passes. If the store
// is busy, which clients can cause, or can never work as it is set up, the call is over its limit.
func (s *Service) ShouldRateLimit(ctx context.Context, r *ratelimit.RateLimitRequest) (*ratelimit.RateLimitResponse, error) {
	asks, err := s.asks(r)
	if err != nil {
		s.callErrors.Add(1)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	// A client that cancels its call is charged, too.
	if err := s.count(context.WithoutCancel(ctx), asks); err != nil {
		s.storeErrors.Add(1)
		s.undecided.Warn("envoy: call not decided", "domain", r.Domain, "err", err, "cause", quota.Cause(err))
		if errors.Is(err, quota.ErrBusy) || errors.Is(err, quota.ErrUnusable) {
			return s.refusal(asks, errors.Is(err, quota.ErrBusy)), nil
		}
		return nil, status.Error(codes.Unavailable, "the store of the counts is unavailable")
	}
	return s.answer(r, asks), nil
}

// refusal returns the answer to a call that could not be decided: each descriptor with a limit is
// over its limit, unless that limit is in shadow mode. If again is true, the client may try again in
// a second.
func (s *Service) refusal(asks []ask, again bool) *ratelimit.RateLimitResponse {
	resp := &ratelimit.RateLimitResponse{OverallCode: ratelimit.RateLimitResponse_OK}
	for i := range asks {
		st := &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK}
		if a := &asks[i]; a.limit != nil {
			st.CurrentLimit = a.proto
			if !a.shadow {
				st.Code = ratelimit.RateLimitResponse_OVER_LIMIT
				resp.OverallCode = st.Code
			}
		}
		resp.Statuses = append(resp.Statuses, st)
	}
	if s.o.Shadow {
		resp.OverallCode = ratelimit.RateLimitResponse_OK
	}
	if again && resp.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT {
		resp.ResponseHeadersToAdd = []*core.HeaderValue{number(retryAfter, 1)}
	}
	return resp
}

// asks returns the descriptors of a call with the limits that apply, or an error if the call is
// invalid.
func (s *Service) asks(r *ratelimit.RateLimitRequest) ([]ask, error) {
	switch n := len(r.Descriptors); {
	case r.Domain == "":
		return nil, errors.New("the domain is empty")
	case n == 0:
		return nil, errors.New("there are no descriptors")
	case n > maxDescriptors:
		return nil, errors.New("there are more than " + strconv.Itoa(maxDescriptors) + " descriptors")
	}
	domain := s.config.Load().domains[r.Domain]
	asks := make([]ask, len(r.Descriptors))
	replaced := map[string]bool{}
	for i, d := range r.Descriptors {
		if err := s.ask(&asks[i], r, d, domain, replaced); err != nil {
			return nil, err
		}
	}
	for i := range asks {
		if a := &asks[i]; a.limit != nil && a.proto.Name != "" && replaced[a.proto.Name] {
			a.limit = nil
		}
	}
	return asks, nil
}

// ask sets the fields of one ask, for the descriptor d of the call r. domain is the domain of r,
// or nil if no file has it. The names of the limits that this limit replaces are added to the
// map replaced.
func (s *Service) ask(a *ask, r *ratelimit.RateLimitRequest, d *common.RateLimitDescriptor, domain *node, replaced map[string]bool) error {
	if domain == nil {
		return nil
	}
	a.hits, a.giveBack = uint64(max(1, r.HitsAddend)), d.GetIsNegativeHits()
	if h := d.GetHitsAddend(); h != nil {
		a.hits = h.Value // 0 spends nothing
	}
	a.hits = min(a.hits, maxHits)
	a.key = appendText(nil, r.Domain)
	if o := d.GetLimit(); o != nil {
		unit := ratelimit.RateLimitResponse_RateLimit_Unit(o.Unit)
		if periods[unit] == 0 {
			return errors.New("a limit in a descriptor has no unit")
		}
		a.limit = &limit{proto: &ratelimit.RateLimitResponse_RateLimit{RequestsPerUnit: o.RequestsPerUnit, Unit: unit}, stats: s.overrides}
		for _, e := range d.Entries {
			a.key = appendText(appendText(a.key, e.GetKey()), e.GetValue())
		}
		return nil
	}
	a.find(domain, d)
	if a.limit == nil {
		return nil
	}
	for _, name := range a.replaces {
		replaced[name] = true
	}
	if a.limit.unlimited {
		a.unlimited, a.limit = true, nil
	}
	return nil
}

// find sets a.limit to the limit that the nodes below n have for d, and appends the key of the
// counter of d to a.key. At each level an equal value comes first, then values with asterisks in
// the order of the file, and then the key without a value. A limit applies to d only if d has an
// entry for each level down to the descriptor of that limit in the file, and no further entry.
func (a *ask) find(n *node, d *common.RateLimitDescriptor) {
	for i, e := range d.GetEntries() {
		name := e.GetKey() + "_" + e.GetValue()
		next, value := n.children[name], e.GetValue()
		for j := 0; next == nil && j < len(n.wildcards); j++ {
			if w := &n.wildcards[j]; w.matches(name) {
				next = w.node
				if w.shared != "" {
					value = w.shared
				}
			}
		}
		if next == nil {
			next = n.children[e.GetKey()]
		}
		if next == nil {
			return
		}
		a.key = appendText(appendText(a.key, e.GetKey()), value)
		if i == len(d.Entries)-1 {
			a.limit = next.limit
		}
		n = next
	}
}

// appendText appends the length of s, a colon and s, so that different lists of texts never
// give the same bytes.
func appendText(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 10)
	return append(append(b, ':'), s...)
}

const (
	// ceiling is the quota of the windows in which hits are counted.
	ceiling = quota.MaxTicks

	// maxHits is the largest number of hits that one descriptor counts. It exceeds every
	// limit, because requests_per_unit is a uint32.
	maxHits = 1 << 32
)

// count counts the hits of every ask that has a limit, even if other asks are over their limit.
// It returns the errors of the store, joined.
func (s *Service) count(ctx context.Context, asks []ask) error {
	var ts []*quota.Transaction
	for i := range asks {
		a := &asks[i]
		if a.limit == nil {
			continue
		}
		cost := int64(a.hits)
		if a.giveBack {
			cost = -cost
		}
		a.t.Charges = []quota.Charge{{Rule: "envoy", Key: string(a.key), Cost: cost, Limit: algorithms.FixedWindow(ceiling, periods[a.proto.Unit])}}
		ts = append(ts, &a.t)
	}
	if len(ts) == 1 {
		return s.store.Take(ctx, ts[0])
	}
	if b, ok := s.store.(quota.Batcher); ok && len(ts) > 0 {
		return errors.Join(b.TakeEach(ctx, ts)...)
	}
	// A store can send concurrent calls in one round trip.
	const workers = 32
	errs := make([]error, len(ts))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(workers, len(ts)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(ts)); i = next.Add(1) - 1 {
				_, errs[i] = panics.Call("envoy: the store panicked", func() error { return s.store.Take(ctx, ts[i]) })
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// after returns the number of hits in the window, including the hits of this ask.
func (a *ask) after() uint64 {
	d := &a.t.Decisions[0]
	if !d.Allowed { // the counter is full
		return ceiling
	}
	return uint64(ceiling - d.Remaining)
}

// status returns the answer to an ask. It adds the hits of the ask to the stats of the limit,
// unless the ask gives hits back.
func (a *ask) status() *ratelimit.RateLimitResponse_DescriptorStatus {
	switch {
	case a.unlimited:
		return &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK, LimitRemaining: math.MaxUint32}
	case a.limit == nil:
		return &ratelimit.RateLimitResponse_DescriptorStatus{Code: ratelimit.RateLimitResponse_OK}
	}
	after, units, period := a.after(), uint64(a.proto.RequestsPerUnit), int64(periods[a.proto.Unit]/time.Second)
	over := after > units
	if !a.giveBack {
		over = a.count(a.hits, after, units, a.shadow)
	}
	st := &ratelimit.RateLimitResponse_DescriptorStatus{
		Code: ratelimit.RateLimitResponse_OK, CurrentLimit: a.proto,
		DurationUntilReset: &durationpb.Duration{Seconds: period - a.t.At.Unix()%period},
	}
	if !over {
		st.LimitRemaining = uint32(units - after)
	} else if !a.shadow {
		st.Code = ratelimit.RateLimitResponse_OVER_LIMIT
	}
	return st
}

// quotaMode reports whether some limit of the call has quota_mode, and whether all limits of the
// call have quota_mode.
func quotaMode(asks []ask) (some, all bool) {
	all = true
	for i := range asks {
		if a := &asks[i]; a.limit != nil {
			some = some || a.quota
			all = all && a.quota
		}
	}
	return some, some && all
}

// answer returns the answer to a call. Its overall code is OVER_LIMIT if a descriptor is over its
// limit. If all limits of the call have quota_mode, the code is OVER_LIMIT only if all descriptors
// are over their limits. With Options.Shadow the code is always OK.
func (s *Service) answer(r *ratelimit.RateLimitRequest, asks []ask) *ratelimit.RateLimitResponse {
	resp := &ratelimit.RateLimitResponse{OverallCode: ratelimit.RateLimitResponse_OK}
	var over []int // the indexes of descriptors that are over their limit
	for i := range asks {
		st := asks[i].status()
		resp.Statuses = append(resp.Statuses, st)
		if st.Code == ratelimit.RateLimitResponse_OVER_LIMIT {
			over = append(over, i)
		}
	}
	someQuota, units := quotaMode(asks)
	if refused := len(over) > 0 && (!units || len(over) == len(asks)); refused && !s.o.Shadow {
		resp.OverallCode = ratelimit.RateLimitResponse_OVER_LIMIT
	}
	if s.o.Headers {
		resp.ResponseHeadersToAdd = headers(tightest(resp.Statuses))
	}
	if resp.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT {
		if wait := wait(asks, resp.Statuses, over, units); wait > 0 {
			resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, number(retryAfter, wait))
		}
	}
	if s.o.Metadata {
		if !units {
			over = nil
		}
		resp.DynamicMetadata = metadata(r, over, someQuota)
	}
	return resp
}

// tightest returns the status of a descriptor that is over its limit, or else the status with the
// smallest LimitRemaining. It returns nil if no descriptor has a limit.
func tightest(statuses []*ratelimit.RateLimitResponse_DescriptorStatus) (least *ratelimit.RateLimitResponse_DescriptorStatus) {
	for _, st := range statuses {
		if st.CurrentLimit != nil && (least == nil || st.Code > least.Code || st.Code == least.Code && st.LimitRemaining < least.LimitRemaining) {
			least = st
		}
	}
	return least
}

// wait returns the seconds after which a refused call may pass. The indexes of the descriptors over
// their limit are in over. All their windows must have ended or, in quota mode, one of them. wait
// returns 0 if the call never passes, because it has more hits than a limit.
func wait(asks []ask, statuses []*ratelimit.RateLimitResponse_DescriptorStatus, over []int, units bool) (seconds int64) {
	for _, i := range over {
		reset := statuses[i].DurationUntilReset.Seconds
		switch never := asks[i].hits > uint64(statuses[i].CurrentLimit.RequestsPerUnit); {
		case never && !units:
			return 0
		case never:
		case units && seconds > 0:
			seconds = min(seconds, reset)
		default:
			seconds = max(seconds, reset)
		}
	}
	return seconds
}

const retryAfter = "Retry-After"

func number(name string, n int64) *core.HeaderValue {
	return &core.HeaderValue{Key: name, Value: strconv.FormatInt(n, 10)}
}

// headers returns the header fields that tell a client the state of the limit in st, or none if
// st is nil.
func headers(st *ratelimit.RateLimitResponse_DescriptorStatus) []*core.HeaderValue {
	if st == nil {
		return nil
	}
	return []*core.HeaderValue{
		number("RateLimit-Limit", int64(st.CurrentLimit.RequestsPerUnit)),
		number("RateLimit-Remaining", int64(st.LimitRemaining)),
		number("RateLimit-Reset", st.DurationUntilReset.Seconds),
	}
}

// metadata returns the dynamic metadata of the call r: its domain, its descriptors, its number
// of hits, whether a limit has quota_mode, and the indexes of descriptors that are over their
// limit.
func metadata(r *ratelimit.RateLimitRequest, over []int, quotaMode bool) *structpb.Struct {
	list := func(values []*structpb.Value) *structpb.Value {
		return structpb.NewListValue(&structpb.ListValue{Values: values})
	}
	var descriptors, violations []*structpb.Value
	for _, d := range r.Descriptors {
		var entries []*structpb.Value
		for _, e := range d.GetEntries() {
			entries = append(entries, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
		}
		fields := map[string]*structpb.Value{"entries": list(entries)}
		if l := d.GetLimit(); l != nil {
			fields["limit"] = structpb.NewStringValue(strings.TrimSpace(l.String()))
		}
		if h := d.GetHitsAddend(); h != nil {
			fields["hitsAddend"] = structpb.NewNumberValue(float64(h.Value))
		}
		descriptors = append(descriptors, structpb.NewStructValue(&structpb.Struct{Fields: fields}))
	}
	fields := map[string]*structpb.Value{
		"domain": structpb.NewStringValue(r.Domain), "descriptors": list(descriptors), "quotaModeEnabled": structpb.NewBoolValue(quotaMode),
	}
	if r.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(r.HitsAddend))
	}
	for _, i := range over {
		violations = append(violations, structpb.NewNumberValue(float64(i)))
	}
	if len(violations) > 0 {
		fields["quotaModeViolations"] = list(violations)
	}
	return &structpb.Struct{Fields: fields}
}

// Server returns a gRPC server for s and for the health service of gRPC. A panic ends only its
// own call, with the code Internal.
func (s *Service) Server() *grpc.Server {
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
		panicked, err := panics.Call("envoy: a call panicked", func() error { resp, err = next(ctx, r); return err })
		if panicked {
			s.o.Logger.Error("envoy: call panicked", "method", info.FullMethod, "err", err)
			err = status.Error(codes.Internal, "the service panicked")
		}
		return resp, err
	}))
	ratelimit.RegisterRateLimitServiceServer(server, s)
	healthpb.RegisterHealthServer(server, s.Health)
	return server
}
