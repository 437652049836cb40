package weirotel_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/internal/tally"
	"github.com/seed83679106/weir/ops/weirotel"
	"github.com/seed83679106/weir/quota"
)

// read returns the data points that a reader collects, each as text: name, attributes and value.
func read(t *testing.T, reader metric.Reader) (points []string) {
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					labels := ""
					for _, kv := range p.Attributes.ToSlice() {
						labels += " " + fmt.Sprint(kv.Value.AsInterface())
					}
					points = append(points, fmt.Sprintf("%s%s: %d", m.Name, labels, p.Value))
				}
			case metricdata.Gauge[int64]:
				labels := ""
				for _, kv := range d.DataPoints[0].Attributes.ToSlice() {
					labels += " " + fmt.Sprint(kv.Value.AsInterface())
				}
				points = append(points, fmt.Sprintf("%s%s: %d", m.Name, labels, d.DataPoints[0].Value))
			case metricdata.Histogram[float64]:
				points = append(points, fmt.Sprintf("%s: %d", m.Name, d.DataPoints[0].Count))
			}
		}
	}
	slices.Sort(points)
	return points
}

// A file is a file of rules with three successful reloads and two failed ones.
type file struct{}

func (file) Version() string                 { return "0a1b2c" }
func (file) Reloads() (loaded, failed int64) { return 3, 2 }
func (file) Err() error                      { return errors.New("a mistake") }
func (file) Rules() []weir.Rule              { return make([]weir.Rule, 7) }

// TestObserve: after requests of all kinds each metric has the right value.
func TestObserve(t *testing.T) {
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	breaker := quota.Breaker(memstore.New(memstore.Options{}), quota.BreakerOptions{})
	hybrid := quota.Hybrid(breaker, quota.HybridOptions{MaxKeys: 100})
	metrics, err := weirotel.New(provider.Meter("weir"), hybrid, breaker, memstore.New(memstore.Options{}), quota.Fallback(breaker, memstore.New(memstore.Options{}), quota.FallbackOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := weirotel.ObserveFile(provider.Meter("weir"), file{}); err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(hybrid, weir.Options{Observe: metrics.Observe, Rules: []weir.Rule{
		{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour).Named("few")},
			Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(2, 1000*time.Hour), Duration: time.Hour}},
		{Name: "new", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1, 1000*time.Hour)}, Enforce: weir.Percent(0)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(l.Handler(http.NotFoundHandler()))
	defer server.Close()
	for range 4 {
		res, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	got := read(t, reader)
	for _, want := range []string{ // the attributes are sorted by name: limit, mode, outcome, rule
		"weir.decisions few enforced allowed api: 2",
		"weir.decisions few enforced refused api: 2",
		"weir.decisions 1000h shadow allowed new: 1",
		"weir.decisions 1000h shadow refused new: 1",
		"weir.units few enforced api: 2",
		"weir.errors error passed: 0",
		"weir.errors unusable refused: 0",
		"weir.fallback.active: 0",
		"weir.fallback.decisions busy: 0",
		"weir.bans api: 1",
		"weir.requests: 4",
		"weir.near_limit few enforced api: 1",
		"weir.near_limit 1000h shadow new: 1",
		"weir.refused enforced ban api: 1",
		"weir.refused enforced limit api: 1",
		"weir.refused shadow limit new: 1",
		"weir.rules.info 0a1b2c: 1",
		"weir.rules.stale: 1",
		"weir.rules: 7",
		"weir.reloads failed: 2",
		"weir.reloads loaded: 3",
		"weir.served memory hybrid: 1",
		"weir.breaker.open: 0",
		"weir.breaker.refused: 0",
		"weir.store.duration: 6",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("got no point %q in %q", want, got)
		}
	}
}

// instruments returns the type, unit, attributes and description of every instrument that a reader
// collects, by name.
func instruments(t *testing.T, reader metric.Reader) map[string]string {
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		kind, labels := "", attribute.Set{}
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			kind, labels = "counter", d.DataPoints[0].Attributes
		case metricdata.Gauge[int64]:
			kind, labels = "gauge", d.DataPoints[0].Attributes
		case metricdata.Histogram[float64]:
			kind, labels = "histogram", d.DataPoints[0].Attributes
		}
		names := []string{}
		for _, kv := range labels.ToSlice() {
			names = append(names, string(kv.Key))
		}
		list[m.Name] = fmt.Sprint(kind, m.Unit, names, m.Description)
	}
	return list
}

// A losing store has found losses.
type losing struct{ weir.Store }

func (losing) Stats() quota.LossStats { return quota.LossStats{Lost: 2, Evicted: 7} }

// TestTable: the meter reports each metric of the table, with its type, its unit and its
// attributes, and no other. A test of package tally compares ops/weirprom/METRICS.md with the table.
func TestTable(t *testing.T) {
	want := map[string]string{}
	for _, m := range append(tally.New().Metrics(), tally.FileMetrics[weir.Rule](nil)...) {
		attributes := []string{}
		for _, label := range m.Labels {
			attributes = append(attributes, "weir."+label)
		}
		slices.Sort(attributes)
		want[m.Otel] = fmt.Sprint(m.Kind, m.Unit, attributes, m.Help)
	}
	reader := metric.NewManualReader()
	breaker := quota.Breaker(memstore.New(memstore.Options{}), quota.BreakerOptions{})
	meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("weir")
	metrics, err := weirotel.New(meter, quota.Hybrid(breaker, quota.HybridOptions{MaxKeys: 100}), breaker, memstore.New(memstore.Options{}), quota.Fallback(breaker, memstore.New(memstore.Options{}), quota.FallbackOptions{}), losing{})
	if err != nil {
		t.Fatal(err)
	}
	if err := weirotel.ObserveFile(meter, file{}); err != nil {
		t.Fatal(err)
	}
	delayed := &quota.Transaction{
		Charges: []quota.Charge{{Rule: "api", Limit: algorithms.GCRA(1, time.Minute), Cost: 1}},
		Result:  quota.Result{Decisions: []quota.Decision{{Allowed: true}}, Wait: time.Second},
	}
	for _, e := range []weir.Event{
		{Transaction: delayed, Took: time.Millisecond},
		{Transaction: &quota.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: "api"}, BanBegan: true},
		{Transaction: &quota.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonDeny, Rule: "api"}},
	} {
		metrics.Observe(e)
	}
	if got := instruments(t, reader); !maps.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

// BenchmarkObserve measures a decision in memory, and one of a store whose time is recorded.
func BenchmarkObserve(b *testing.B) {
	metrics, err := weirotel.New(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())).Meter("weir"))
	if err != nil {
		b.Fatal(err)
	}
	for name, took := range map[string]time.Duration{"memory": 0, "store": time.Millisecond} {
		e := weir.Event{Took: took, Transaction: &quota.Transaction{
			Charges: []quota.Charge{{Rule: "api", Key: "k", Limit: weir.Limit{Name: "1m"}, Cost: 1}},
			Result:  quota.Result{Decisions: []quota.Decision{{Allowed: true}}}}}
		if n := testing.AllocsPerRun(100, func() { metrics.Observe(e) }); n != 0 {
			b.Errorf("%s: %v allocations", name, n)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				metrics.Observe(e)
			}
		})
	}
}

// The type file is for tests. In a program, pass the *config.File that config.Open
// returns.
func ExampleObserveFile() {
	if err := weirotel.ObserveFile(noop.Meter{}, file{}); err != nil { // otel.Meter("weir")
		fmt.Println(err)
	}
	// Output:
}

// TestExpect: a counter that an alert watches begins with 0, before the first refusal or ban.
func TestExpect(t *testing.T) {
	reader := metric.NewManualReader()
	metrics, err := weirotel.New(metric.NewMeterProvider(metric.WithReader(reader)).Meter("weir"))
	if err != nil {
		t.Fatal(err)
	}
	limits := []weir.Limit{algorithms.GCRA(1, time.Hour)}
	penalty := weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Hour), Duration: time.Minute}
	metrics.Expect(weir.Rule{Name: "login", Key: weir.ByIP(), Limits: limits, Penalty: &penalty},
		weir.Rule{Name: "new", Key: weir.ByIP(), Limits: limits, Enforce: weir.Percent(0)})
	got := read(t, reader)
	for _, want := range []string{
		"weir.bans login: 0", "weir.refused enforced ban login: 0", "weir.refused enforced limit login: 0",
		"weir.refused shadow limit new: 0",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("got %q, want %q as well", got, want)
		}
	}
	if slices.Contains(got, "weir.bans new: 0") {
		t.Error("a rule without a Penalty counts bans")
	}
}
