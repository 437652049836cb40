package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed83679106/weir/internal/test/redistest"
)

// BenchmarkAuth compares /auth and the service for Envoy, in memory and with Redis, with a
// handler that only answers 200. In each iteration they take turns in random order: each caller
// asks ten times, over connections that stay open. The metrics are the median of the time divided
// by the requests, in µs, and its ratio to that of the handler. The callers share the processors.
func BenchmarkAuth(b *testing.B) {
	dir := b.TempDir()
	limits := writeFile(b, filepath.Join(dir, "limits.yaml"), "trusted-proxies: [127.0.0.1]\nlimits: [{name: client, config: [{limit: 1000000, period: 1}]}]\n")
	envoy := writeFile(b, filepath.Join(dir, "envoy.yaml"), "domain: app\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 1000000}}]")
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) }))
	defer plain.Close()
	service := []string{"-limits", limits, "-envoy-config", envoy, "-envoy-rls", "127.0.0.1:0"}
	memory := startService(b, service...)
	shared := startService(b, append(service, "-redis-addrs", redistest.Server(b).Addr(), "-redis-timeout", "5s", "-redis-down", downClosed)...)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	ask := func(url string) func() {
		r, err := http.NewRequest("GET", url, nil)
		if err != nil {
			b.Fatal(err)
		}
		for f := range slices.Chunk(asking("192.0.2.1"), 2) {
			r.Header.Set(f[0], f[1])
		}
		return func() {
			resp, err := client.Do(r.Clone(b.Context()))
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				b.Errorf("%s: got %d, %v", url, resp.StatusCode, err)
			}
			resp.Body.Close()
		}
	}
	askRLS := func(s *running) func() {
		conn := dialService(b, s, insecure.NewCredentials())
		return func() {
			if got := askEnvoy(b, conn, "192.0.2.1"); got != "OK" {
				b.Error("Envoy's service: got ", got)
			}
		}
	}
	asks := []func(){ask(plain.URL), ask(memory.url("auth-addr") + "/auth"), ask(shared.url("auth-addr") + "/auth"), askRLS(memory), askRLS(shared)}
	for _, callers := range []int{1, 32} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			took := make([][]time.Duration, len(asks))
			for b.Loop() {
				for _, i := range rand.Perm(len(asks)) {
					begin := time.Now()
					var wg sync.WaitGroup
					for range callers {
						wg.Go(func() {
							for range 10 {
								asks[i]()
							}
						})
					}
					wg.Wait()
					took[i] = append(took[i], time.Since(begin)/time.Duration(10*callers))
				}
			}
			median := func(i int) float64 {
				slices.Sort(took[i])
				return float64(took[i][len(took[i])/2]) / float64(time.Microsecond)
			}
			for i, name := range []string{"plain", "auth-memory", "auth-Redis", "Envoy-memory", "Envoy-Redis"} {
				b.ReportMetric(median(i), "µs-"+name)
				b.ReportMetric(median(i)/median(0), "×-"+name)
			}
		})
	}
}
