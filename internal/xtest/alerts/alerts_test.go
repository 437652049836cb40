// Package alerts_test tests the alerts of ops/weirprom/rules.yaml: a real Prometheus watches a
// program while things go wrong.
package alerts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/weirprom"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A slowStore takes 40 ms for one decision in ten while slow is set.
type slowStore struct {
	weir.Store
	slow *atomic.Bool
	n    atomic.Int64
}

func (s *slowStore) Take(ctx context.Context, t *quota.Transaction) error {
	if s.slow.Load() && s.n.Add(1)%10 == 0 {
		time.Sleep(40 * time.Millisecond)
	}
	return s.Store.Take(ctx, t)
}

// A failingStore fails in four ways in turn while fails is set.
type failingStore struct {
	weir.Store
	fails *atomic.Bool
	n     atomic.Int64
}

func (s *failingStore) Take(ctx context.Context, t *quota.Transaction) error {
	if s.fails.Load() {
		return [...]error{quota.ErrBusy, quota.ErrUnusable, quota.ErrFull, quota.ErrSlow}[s.n.Add(1)%4]
	}
	return s.Store.Take(ctx, t)
}

// Stats says that a server has lost counts, while the store fails.
func (s *failingStore) Stats() (lost quota.LossStats) {
	if s.fails.Load() {
		lost.Lost = 1
	}
	return lost
}

// A program limits requests by their header field K, and serves metrics.
type program struct {
	http.Handler
	file    string
	metrics string // host:port of the metrics

	rejected prometheus.Counter // as weir serve has it
}

const rules = `
limits:
- name: api
  key: header:K
  penalty: {strikes: {limit: 1, period: 1h}, for: 1h}
  config: [{limit: 5, period: 1h}]
`

// start starts a program with the rules in text, whose requests are decided by store. The
// program exports the metrics of store and of stores.
func start(t *testing.T, text string, o weir.Options, store weir.Store, stores ...weir.Store) *program {
	p := &program{file: filepath.Join(t.TempDir(), "rules.yaml")}
	p.write(t, text)
	metrics := weirprom.New(append(stores, store)...)
	o.Observe, o.Logger = metrics.Observe, slog.New(slog.DiscardHandler)
	f, err := config.Open(p.file, store, config.Options{Limiter: o})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	p.rejected = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_auth_rejected_total"})
	registry.MustRegister(metrics, weirprom.NewFile(f), p.rejected)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	p.metrics = server.Listener.Addr().String()
	go f.Watch(t.Context())
	page := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	mux := http.NewServeMux()
	mux.Handle("/", f.Handler("api")(page))
	all, err := f.HandlerOfAll()
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("/search", all(page))
	p.Handler = mux
	return p
}

func (p *program) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(p.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// traffic sends requests from eight clients at once until the test ends. Each client sends
// perKey requests with one key, then as many with a new key.
func (p *program) traffic(t *testing.T, perKey *atomic.Int64) {
	for c := range 8 {
		go func() {
			for i := 0; t.Context().Err() == nil; i++ {
				for range perKey.Load() {
					r := httptest.NewRequest("GET", "/", nil)
					r.Header.Set("K", fmt.Sprint(c, ":", i))
					p.ServeHTTP(httptest.NewRecorder(), r)
					time.Sleep(5 * time.Millisecond)
				}
			}
		}()
	}
}

// quick returns ops/weirprom/rules.yaml with windows of seconds instead of minutes.
func quick(t *testing.T) string {
	data, err := os.ReadFile("../../../ops/weirprom/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`\[\d+m(:\d+s)?\]`).ReplaceAllStringFunc(string(data), func(window string) string {
		if strings.Contains(window, ":") {
			return "[8s:1s]"
		}
		return "[8s]"
	})
	text = strings.ReplaceAll(text, "offset 1m", "offset 1s")
	return regexp.MustCompile(`for: \d+m`).ReplaceAllString(text, "for: 1s")
}

// run starts a Prometheus that scrapes the programs at the interval, and returns its
// address. The instances are shop-1, shop-2 and so on.
func run(t *testing.T, interval string, programs ...*program) string {
	bin, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	var targets strings.Builder
	for i, p := range programs {
		fmt.Fprintf(&targets, "  - {targets: [%q], labels: {instance: shop-%d}}\n", p.metrics, i+1)
	}
	for name, text := range map[string]string{
		"rules.yaml": quick(t),
		"prometheus.yml": "global: {scrape_interval: " + interval + ", evaluation_interval: " + interval + "}\nrule_files: [rules.yaml]\n" +
			"scrape_configs:\n- job_name: shop\n  static_configs:\n" + targets.String(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	addr := redistest.FreeAddr()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+addr)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("Prometheus says:\n%s", text)
		}
	})
	return addr
}

// get asks the Prometheus at addr for a path of its API, and decodes the answer into body.
func get(addr, path string, body any) error {
	res, err := http.Get("http://" + addr + "/api/v1/" + path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(body)
}

// firing returns the names of the alerts that fire, or nil if Prometheus does not answer.
func firing(addr string) []string {
	var body struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if get(addr, "alerts", &body) != nil {
		return nil
	}
	names := map[string]bool{}
	for _, a := range body.Data.Alerts {
		if a.State == "firing" {
			names[a.Labels["alertname"]] = true
		}
	}
	return slices.AppendSeq([]string{}, maps.Keys(names))
}

// samples returns how many samples Prometheus returns for a query.
func samples(addr, query string) int {
	var body struct{ Data struct{ Result []any } }
	get(addr, "query?query="+url.QueryEscape(query), &body)
	return len(body.Data.Result)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after 90 s", what)
		}
	}
}

// TestEveryAlertFires: no alert fires while all is well, and each alert fires when its
// condition occurs.
func TestEveryAlertFires(t *testing.T) {
	if !rounds.Long() {
		t.Skip("takes half a minute: WEIR_LONG is not set")
	}
	server := redistest.Server(t)
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(time.Second, server.Addr()))
	t.Cleanup(func() { rdb.Close() })
	shared, err := redisstore.New(rdb, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var slow, fails atomic.Bool
	var perKey atomic.Int64
	perKey.Store(4)
	a := start(t, rules, weir.Options{}, quota.Breaker(&slowStore{Store: shared, slow: &slow}, quota.BreakerOptions{}))
	b := start(t, rules, weir.Options{}, quota.Breaker(memstore.New(memstore.Options{}), quota.BreakerOptions{}))
	c := start(t, rules, weir.Options{OnError: weir.FailClosed}, &failingStore{Store: memstore.New(memstore.Options{}), fails: &fails})
	fallback := quota.Fallback(&failingStore{Store: memstore.New(memstore.Options{}), fails: &fails}, memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
	d := start(t, rules+"- name: spare\n  config: [{limit: 5, period: 1h}]\n", weir.Options{}, fallback)
	for _, p := range []*program{a, c, d} {
		p.traffic(t, &perKey)
	}
	addr := run(t, "200ms", a, b, c, d)
	eventually(t, "metrics", func() bool { return samples(addr, "job_outcome:weir_errors:ratio_rate1m") == 3 })
	expect := func(names ...string) {
		t.Helper()
		eventually(t, fmt.Sprint(names), func() bool {
			now := firing(addr)
			return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(now, name) })
		})
	}
	for _, name := range firing(addr) {
		if name != "WeirStoreSlow" { // a busy machine makes the store slow
			t.Errorf("%s fires while all is well", name)
		}
	}

	perKey.Store(12)                                  // a spike: five of every twelve requests pass
	slow.Store(true)                                  // the store is slow
	a.write(t, strings.Replace(rules, "5,", "6,", 1)) // one replica loads a changed file
	b.write(t, strings.Replace(rules, "5,", "0,", 1)) // the other replica's file has a mistake
	d.write(t, rules)                                 // a third one has lost a rule
	expect("WeirRulesRemoved", "WeirRefusals", "WeirBans", "WeirStoreSlow", "WeirRulesStale", "WeirVersionsDiffer")

	fails.Store(true)
	a.rejected.Add(1e4)
	expect("WeirErrors", "WeirUnusable", "WeirFallback", "WeirBusy", "WeirFull", "WeirTooSlow", "WeirCountsLost", "WeirAuthRejected")

	server.Kill()
	expect("WeirPassedUndecided", "WeirBreakerOpen")

	data, _ := os.ReadFile("../../../ops/weirprom/rules.yaml")
	if n := strings.Count(string(data), "- alert: "); n != 16 {
		t.Errorf("rules.yaml has %d alerts; this test makes 16 of them fire", n)
	}
}
