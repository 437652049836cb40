package alerts_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

var update = flag.Bool("update", false, "write docs/figures/dashboard.json from a run of 90 s")

const shopRules = `
key: header:K
limits:
- name: api
  deny: [mallory]
  penalty: {strikes: {limit: 40, period: 30s}, for: 10s}
  config: [{limit: 50, period: 5s}, {limit: 300, period: 1m}]
- name: search
  config: [{limit: 3, period: 1s}, {limit: 80, period: 1m, burst: 20}]
- name: trial
  enforce: 0%
  config: [{limit: 60, period: 1m, burst: 5}]
`

// TestDashboardRun records what the queries of ops/weirprom/dashboard.json return in a real
// Prometheus while two real servers share a Redis. TestDashboard in docs/figures draws it:
//
//	go test -C internal/xtest ./alerts -run TestDashboardRun -update
//	go test -C docs/figures . -run TestDashboard -update
func TestDashboardRun(t *testing.T) {
	if !*update {
		t.Skip("runs only with -update, for 100 s")
	}
	store := redistest.Server(t)
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(time.Second, store.Addr()))
	t.Cleanup(func() { rdb.Close() })
	var shops [2]*program
	var servers [2]*httptest.Server
	for i := range shops {
		shared, err := redisstore.New(rdb, redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		breaker := quota.Breaker(shared, quota.BreakerOptions{})
		hybrid := quota.Hybrid(breaker, quota.HybridOptions{})
		store := weir.Store(hybrid)
		if i == 1 { // the other shop lets requests pass while Redis is paused
			store = quota.Fallback(hybrid, quota.Share(memstore.New(memstore.Options{}), len(shops)), quota.FallbackOptions{})
		}
		shops[i] = start(t, shopRules, weir.Options{MaxWait: 300 * time.Millisecond}, store, hybrid, breaker)
		servers[i] = httptest.NewServer(shops[i])
		t.Cleanup(servers[i].Close)
	}
	addr := run(t, "1s", shops[:]...)
	eventually(t, "Prometheus", func() bool { return samples(addr, "weir_requests_total") == 2 })

	const seconds = 90
	begin := time.Now().Add(8 * time.Second).Truncate(time.Second)
	until := func(second float64) { time.Sleep(time.Until(begin.Add(time.Duration(second * float64(time.Second))))) }
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	t.Cleanup(client.CloseIdleConnections)
	ask := func(server *httptest.Server, key, path string) {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
		r.Header.Set("K", key)
		if res, err := client.Do(r); err == nil {
			res.Body.Close()
		}
	}
	// visit sends requests of one client, rate of them each second, to both shops in turn.
	visit := func(key, path string, rate, from, to float64) {
		go func() {
			for i := 0; ; i++ {
				at := from + float64(i)/rate
				if until(at); at >= to || t.Context().Err() != nil {
					return
				}
				go ask(servers[i%2], key, path)
			}
		}()
	}
	for i := range 12 {
		n := float64(i)
		visit(fmt.Sprint("guest", i), "/", 1+n/8, n/12-7, seconds)
		visit(fmt.Sprint("guest", i), "/search", 1, n/12-7, seconds)
	}
	for i := range 5 {
		n := float64(i)
		visit(fmt.Sprint("seeker", i), "/search", 2+n/2, 28+2*n, 56-2*n)
	}
	for i := range 4 {
		visit(fmt.Sprint("crawler", i), "/", 20, 12+12*float64(i), seconds+1)
	}
	visit("mallory", "/", 3, 20, 50)
	visit("bot", "/search", 30, 40, 64) // ignores Retry-After, and Hybrid refuses it from memory
	until(66)
	store.Pause()
	until(72)
	store.Resume()
	until(78)
	shops[0].write(t, strings.Replace(shopRules, "limit: 3,", "limit: 0,", 1))
	until(82)
	shops[0].write(t, strings.Replace(shopRules, "limit: 3,", "limit: 4,", 1))
	until(86)
	shops[1].write(t, strings.Replace(shopRules, "limit: 3,", "limit: 4,", 1))
	until(seconds + 1)

	record(t, addr, begin.Unix(), seconds)
}

// record writes what Prometheus returns for each query of the dashboard to
// docs/figures/dashboard.json.
func record(t *testing.T, addr string, begin, seconds int64) {
	t.Helper()
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	data, err := os.ReadFile("../../../ops/weirprom/dashboard.json")
	if err == nil {
		err = json.Unmarshal(data, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	// For Grafana, $__rate_interval is at least four intervals of scraping.
	variables := strings.NewReplacer("$__rate_interval", "4s", "$__range", fmt.Sprint(seconds, "s"), "$job", ".*", "$instance", ".*", "$rule", ".*")
	recorded := map[string][]series{} // by query
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			if recorded[q.Expr] == nil {
				recorded[q.Expr] = []series{}
			}
			recorded[q.Expr] = append(recorded[q.Expr], query(t, addr, variables.Replace(q.Expr), begin, seconds)...)
		}
	}
	text, err := json.Marshal(recorded)
	if err == nil {
		err = os.WriteFile("../../../docs/figures/dashboard.json", append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A series is what one query returned for one set of labels.
type series struct {
	Labels map[string]string
	Points [][2]float64 // a second of the run, and the value
}

// query asks the Prometheus at addr for the values of an expression in each second of a run.
func query(t *testing.T, addr, expr string, begin, seconds int64) (list []series) {
	t.Helper()
	var body struct {
		Status string
		Data   struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	err := get(addr, "query_range?"+url.Values{"query": {expr}, "step": {"1"},
		"start": {fmt.Sprint(begin)}, "end": {fmt.Sprint(begin + seconds)}}.Encode(), &body)
	mayBeEmpty := strings.HasSuffix(expr, " > 0") // what does not happen in this run
	if err != nil || body.Status != "success" || len(body.Data.Result) == 0 && !mayBeEmpty {
		t.Errorf("%s: status %s, %d series, %v", expr, body.Status, len(body.Data.Result), err)
	}
	for _, r := range body.Data.Result {
		s := series{Labels: r.Metric}
		for _, v := range r.Values {
			n, err := strconv.ParseFloat(v[1].(string), 64)
			if err == nil && !math.IsNaN(n) { // 0 / 0 is a gap
				n, _ = strconv.ParseFloat(strconv.FormatFloat(n, 'g', 3, 64), 64)
				s.Points = append(s.Points, [2]float64{v[0].(float64) - float64(begin), n})
			}
		}
		list = append(list, s)
	}
	return list
}
