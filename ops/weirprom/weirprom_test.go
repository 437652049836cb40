package weirprom_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/internal/tally"
	"github.com/seed83679106/weir/ops/weirprom"
	"github.com/seed83679106/weir/quota"
)

// A flaky store fails while gone is true.
type flaky struct {
	weir.Store
	gone bool
}

func (f *flaky) Take(ctx context.Context, t *quota.Transaction) error {
	if f.gone {
		return errors.New("gone")
	}
	return f.Store.Take(ctx, t)
}

// A losing store has found losses.
type losing struct{ weir.Store }

func (losing) Stats() quota.LossStats { return quota.LossStats{Lost: 2, Evicted: 7} }

// A file is a file of rules with three successful reloads and two failed ones.
type file struct{}

func (file) Version() string                 { return "0a1b2c" }
func (file) Reloads() (loaded, failed int64) { return 3, 2 }
func (file) Err() error                      { return errors.New("a mistake") }
func (file) Rules() []weir.Rule              { return make([]weir.Rule, 7) }

// scrape sends requests of all kinds, and returns the text that Prometheus would get.
func scrape(t *testing.T) (text string, registry *prometheus.Registry) {
	synctest.Test(t, func(t *testing.T) { text, registry = scrapeAtOnce(t) })
	return text, registry
}

// scrapeAtOnce is scrape in a bubble, in which a request comes before the next unit of a limit.
func scrapeAtOnce(t *testing.T) (string, *prometheus.Registry) {
	store := &flaky{Store: memstore.New(memstore.Options{})}
	breaker := quota.Breaker(store, quota.BreakerOptions{})
	hybrid := quota.Hybrid(breaker, quota.HybridOptions{MaxKeys: 1000})
	fallback := quota.Fallback(&flaky{gone: true}, memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
	leases := lease.New(memstore.New(memstore.Options{}), lease.Options{})
	metrics := weirprom.New(hybrid, breaker, leases, store, fallback, memstore.New(memstore.Options{}), losing{})
	deny, err := weir.KeyList("spammer")
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(hybrid, weir.Options{Observe: metrics.Observe, Rules: []weir.Rule{
		{Name: "api", Key: weir.ByHeader("Key"), ForKey: weir.When(deny, weir.Denied()),
			Limits:  []weir.Limit{algorithms.FixedWindow(3, 1000*time.Hour).Named("few"), algorithms.FixedWindow(10, 9000*time.Hour).Named("many")},
			Cost:    func(r *http.Request) int64 { return int64(len(r.URL.Path)) },
			Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(3, 1000*time.Hour), Duration: time.Hour}},
		{Name: "new", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.FixedWindow(1, 1000*time.Hour)}, Enforce: weir.Percent(0)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	slow, err := weir.New(fallback, weir.Options{Observe: metrics.Observe, MaxWait: time.Second, Rules: []weir.Rule{
		{Name: "slow", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(100, time.Second).WithBurst(1)}}}})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics, weirprom.NewFile(file{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /slow", slow.Handler(http.NotFoundHandler()))
	mux.Handle("GET /", l.Handler(http.NotFoundHandler()))
	get := func(path, key string) string {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
		r.Header.Set("Key", key)
		mux.ServeHTTP(w, r)
		return w.Body.String()
	}
	get("/", "a")       // spends 1 of 3 units
	get("/x", "a")      // spends 2 units; the rule in shadow would refuse it
	get("/", "a")       // refused by the limit few
	get("/", "a")       // refused by Hybrid from memory
	get("/", "a")       // refused; the third strike begins a ban
	get("/", "a")       // refused by the ban; the store is not asked
	get("/", "spammer") // refused by the deny list
	get("/slow", "a")
	get("/slow", "a") // delayed
	store.gone = true
	get("/", "b") // passes, because the store fails
	return get("/metrics", ""), registry
}

// TestScrape: after requests of all kinds each metric has the right value, and no label has a key.
func TestScrape(t *testing.T) {
	text, registry := scrape(t)
	for _, want := range []string{
		`weir_decisions_total{limit="few",mode="enforced",outcome="allowed",rule="api"} 2`,
		`weir_decisions_total{limit="few",mode="enforced",outcome="refused",rule="api"} 3`,
		`weir_decisions_total{limit="many",mode="enforced",outcome="allowed",rule="api"} 2`,
		`weir_decisions_total{limit="many",mode="enforced",outcome="refused",rule="api"} 0`,
		`weir_decisions_total{limit="1000h",mode="shadow",outcome="allowed",rule="new"} 1`,
		`weir_decisions_total{limit="1000h",mode="shadow",outcome="refused",rule="new"} 1`,
		`weir_decisions_total{limit="1s",mode="enforced",outcome="delayed",rule="slow"} 1`,
		`weir_units_total{limit="few",mode="enforced",rule="api"} 3`,
		`weir_errors_total{cause="error",outcome="passed"} 1`,
		`weir_errors_total{cause="error",outcome="refused"} 0`,
		`weir_errors_total{cause="unusable",outcome="passed"} 0`,
		`weir_fallback_active 1`,
		`weir_fallback_decisions_total{cause="busy"} 0`,
		`weir_fallback_decisions_total{cause="error"} 2`,
		`weir_unlimited_total 0`,
		`weir_refused_total{mode="enforced",reason="limit",rule="api"} 2`,
		`weir_refused_total{mode="enforced",reason="ban",rule="api"} 2`,
		`weir_refused_total{mode="enforced",reason="deny",rule="api"} 1`,
		`weir_refused_total{mode="shadow",reason="limit",rule="new"} 1`,
		`weir_bans_total{rule="api"} 1`,
		`weir_requests_total 10`,
		`weir_near_limit_total{limit="few",mode="enforced",rule="api"} 1`,
		`weir_near_limit_total{limit="many",mode="enforced",rule="api"} 0`,
		`weir_near_limit_total{limit="1s",mode="enforced",rule="slow"} 2`,
		`weir_rules_info{version="0a1b2c"} 1`,
		`weir_rules_stale 1`,
		`weir_rules 7`,
		`weir_reloads_total{result="loaded"} 3`,
		`weir_reloads_total{result="failed"} 2`,
		`weir_wait_seconds_count 1`,
		`weir_breaker_open 0`,
		`weir_memory_evicted_total 0`,
		`weir_redis_lost_total 2`,
		`weir_redis_evicted_total 7`,
		`weir_served_total{from="memory",kind="hybrid"} 2`,
		`weir_served_total{from="memory",kind="lease"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("a scrape lacks %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("got %v, %v, want no problem", problems, err)
	}
	for _, no := range []string{"spammer", "penalty"} { // a key, and the name of an internal charge
		if strings.Contains(text, no) {
			t.Errorf("a scrape has %q", no)
		}
	}
}

// TestDashboard: the dashboard shows every metric of the package, and no others.
// TestExpect: a counter that an alert watches begins with 0, before the first refusal or ban.
func TestExpect(t *testing.T) {
	c := weirprom.New()
	limits := []weir.Limit{algorithms.GCRA(1, time.Hour)}
	banning := weir.Rule{Name: "login", Key: weir.ByIP(), Limits: limits, Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Hour), Duration: time.Minute}}
	c.Expect(banning, weir.Rule{Name: "new", Key: weir.ByIP(), Limits: limits, Enforce: weir.Percent(0)})
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	got := w.Body.String()
	for _, want := range []string{
		`weir_bans_total{rule="login"} 0`, `weir_refused_total{mode="enforced",reason="ban",rule="login"} 0`,
		`weir_refused_total{mode="enforced",reason="limit",rule="login"} 0`, `weir_refused_total{mode="shadow",reason="limit",rule="new"} 0`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, got)
		}
	}
	if strings.Contains(got, `weir_bans_total{rule="new"}`) {
		t.Error("a rule without a Penalty counts bans")
	}
}

func TestDashboard(t *testing.T) {
	data, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Title      string
		Templating struct{ List []struct{ Name string } }
		Panels     []panel
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	text, _ := scrape(t)
	asked := map[string]bool{}
	if names := fmt.Sprint(dashboard.Templating.List); names != "[{datasource} {job} {instance} {rule}]" {
		t.Errorf("the variables are %s", names)
	}
	for _, p := range dashboard.Panels {
		p.check(t, text, asked)
	}
	for _, m := range regexp.MustCompile(`# TYPE (\w+)`).FindAllStringSubmatch(text, -1) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(asked)), func(name string) bool { return strings.HasPrefix(name, m[1]) }) {
			t.Errorf("the dashboard does not show %s", m[1])
		}
	}
}

type panel struct {
	Title, Description, Type string
	FieldConfig              struct {
		Defaults struct{ Thresholds struct{ Steps []any } }
	}
	Targets []struct{ Expr string }
}

var (
	series = regexp.MustCompile(`\bweir_\w+`)
	labels = regexp.MustCompile(`(?:by \(|[{,(] ?)(\w+)(?:=|,|\))`)
)

// check checks that the metrics that a panel queries are in text, and adds their names to the set
// asked.
func (p *panel) check(t *testing.T, text string, asked map[string]bool) {
	t.Helper()
	if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
		t.Errorf("panel %q has no title or no description, or asks nothing", p.Title)
	}
	if p.Type == "stat" && len(p.FieldConfig.Defaults.Thresholds.Steps) == 0 {
		t.Errorf("%s has no thresholds", p.Title)
	}
	for _, target := range p.Targets {
		if n := strings.Count(target.Expr, `job=~"$job",instance=~"$instance"`); n != len(series.FindAllString(target.Expr, -1)) {
			t.Errorf("%s: %s ignores the job or the instance", p.Title, target.Expr)
		}
		for _, name := range series.FindAllString(target.Expr, -1) {
			asked[name] = true
			if !strings.Contains(text, "\n"+name) {
				t.Errorf("%s: no metric %s", p.Title, name)
			}
		}
		for _, m := range labels.FindAllStringSubmatch(target.Expr, -1) {
			if !slices.Contains([]string{"le", "job", "instance"}, m[1]) && !strings.HasPrefix(m[1], "weir_") && !strings.Contains(text, m[1]+"=") {
				t.Errorf("%s: no label %s", p.Title, m[1])
			}
		}
	}
}

// TestAlerts: Prometheus loads the rules, and every alert fires as rules_test.yaml says. The rules
// use only metrics of the package, and one of weir serve, which TestMiswiredProxies of cmd/weir proves.
func TestAlerts(t *testing.T) {
	rules, err := os.ReadFile("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cases, err := os.ReadFile("rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := scrape(t)
	for _, name := range regexp.MustCompile(`[( ](weir_\w+)`).FindAllStringSubmatch(string(rules), -1) {
		if !strings.Contains(text, "\n"+name[1]) && name[1] != "weir_auth_rejected_total" {
			t.Errorf("there is no metric %s", name[1])
		}
	}
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	if len(alerts) < 12 {
		t.Errorf("got the alerts %q, want more", alerts)
	}
	for _, a := range alerts {
		for what, want := range map[string]string{
			"never fires":      `alertname: ` + a[1] + `\s+exp_alerts:\s+- exp_labels`,
			"is always firing": `alertname: ` + a[1] + `, exp_alerts: \[\]`,
		} {
			if !regexp.MustCompile(want).Match(cases) {
				t.Errorf("%s %s in rules_test.yaml", a[1], what)
			}
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml", "rules_week_test.yaml", "rules_blips_test.yaml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestBounded: the number of time series is bounded, however many limits a Policy returns.
func TestBounded(t *testing.T) {
	metrics := weirprom.New()
	e := weir.Event{Transaction: &quota.Transaction{Charges: make([]quota.Charge, 1), Result: quota.Result{Decisions: []quota.Decision{{Allowed: true}}}}}
	for i := range 5 * tally.Most {
		e.Transaction.Charges[0] = quota.Charge{Rule: "api", Limit: weir.Limit{Name: fmt.Sprint("limit", i)}, Cost: 1}
		metrics.Observe(e)
	}
	if n := testutil.CollectAndCount(metrics, "weir_units_total"); n != tally.Most+1 {
		t.Errorf("got %d series, want %d and one for the others", n, tally.Most)
	}
}

// TestTable: the package exports each metric of the table, with its type and its labels, and no
// other. A test of package tally compares ops/weirprom/METRICS.md with the table.
func TestTable(t *testing.T) {
	want := map[string]string{}
	for _, m := range append(tally.New().Metrics(), tally.FileMetrics[weir.Rule](nil)...) {
		slices.Sort(m.Labels)
		want[m.Name] = fmt.Sprint(m.Kind, m.Labels, m.Help)
	}
	_, registry := scrape(t)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string]string{}
	for _, f := range families {
		labels := []string{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		exported[f.GetName()] = fmt.Sprint(strings.ToLower(f.GetType().String()), labels, f.GetHelp())
	}
	if !maps.Equal(exported, want) {
		t.Errorf("got\n%q, want\n%q", exported, want)
	}
}

// event returns an event of an admitted request.
func event() weir.Event {
	return weir.Event{Took: time.Millisecond, Transaction: &quota.Transaction{
		Charges: []quota.Charge{{Rule: "api", Key: "k", Limit: weir.Limit{Name: "1m"}, Cost: 1}},
		Result:  quota.Result{Decisions: []quota.Decision{{Allowed: true}}, Wait: time.Second}}}
}

// TestObserveAllocates: Observe allocates nothing for a limit that it has seen.
func TestObserveAllocates(t *testing.T) {
	metrics, e := weirprom.New(), event()
	metrics.Observe(e)
	if n := testing.AllocsPerRun(100, func() { metrics.Observe(e) }); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	metrics, e := weirprom.New(), event()
	b.ReportAllocs()
	for b.Loop() {
		metrics.Observe(e)
	}
}

func ExampleNew() {
	metrics := weirprom.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Minute)}}},
		Observe: metrics.Observe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	if err := testutil.CollectAndCompare(metrics, strings.NewReader(`
		# HELP weir_units_total Units spent under each limit.
		# TYPE weir_units_total counter
		weir_units_total{limit="1m",mode="enforced",rule="api"} 1
	`), "weir_units_total"); err != nil {
		fmt.Println(err)
	}
	// Output:
}
