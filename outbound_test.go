package weir_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/llm"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A provider answers as the API of a language model does.
func provider(t *testing.T) *httptest.Server {
	var refused atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const usage = `"usage":{"prompt_tokens":5,"completion_tokens":7}`
		switch r.URL.Path {
		case "/json":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"model":"m","choices":[],`+usage+`}`)
		case "/stream", "/broken":
			w.Header().Set("Content-Type", "text/event-stream")
			for range 100 {
				fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
			}
			_ = http.NewResponseController(w).Flush()
			if r.URL.Path == "/broken" {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprint(w, "data: {"+usage+"}\n\ndata: [DONE]\n\n")
		case "/field":
			w.Header().Set("Tokens-Used", "12")
		case "/once": // refuses the first request
			if !refused.Swap(true) {
				w.Header().Set("Retry-After-Ms", "1")
				w.WriteHeader(429)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{`+usage+`}`)
		default:
			status, _ := strconv.Atoi(r.URL.Path[1:])
			w.WriteHeader(status)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// TestTransportSettles: a request that goes out is charged what its answer says, once its body is
// closed, and as long as nobody knows, what it has reserved.
func TestTransportSettles(t *testing.T) {
	drain := func(b io.ReadCloser) { _, _ = io.Copy(io.Discard, b); b.Close() }
	sdk := func(b io.ReadCloser) { // stops at the last event
		for lines := bufio.NewScanner(b); lines.Scan() && lines.Text() != "data: [DONE]"; {
		}
		b.Close()
	}
	hangUp := func(b io.ReadCloser) { _, _ = io.CopyN(io.Discard, b, 100); b.Close() }
	for _, tt := range []struct {
		name, path string
		read       func(io.ReadCloser)
		settle     func(weir.Outcome) int64
		want       int64
	}{
		{"usage in a body", "/json", drain, weir.ChargeUsed, 88},
		{"usage in a stream", "/stream", drain, weir.ChargeUsed, 88},
		{"usage in a stream, of an SDK", "/stream", sdk, weir.ChargeUsed, 88},
		{"closed twice", "/stream", func(b io.ReadCloser) { drain(b); b.Close() }, weir.ChargeUsed, 88},
		{"hung up on", "/stream", hangUp, weir.ChargeUsed, 60},
		{"not read", "/json", func(b io.ReadCloser) { b.Close() }, weir.ChargeUsed, 60},
		{"never closed", "/json", func(io.ReadCloser) {}, weir.ChargeUsed, 60},
		{"broken off", "/broken", drain, weir.ChargeUsed, 60},
		{"an error", "/500", drain, weir.ChargeUsed, 100},
		{"refused and sent again", "/once", drain, weir.ChargeUsed, 88},
		{"refused", "/429", drain, weir.ChargeUsed, 100},
		{"usage in a field", "/field", drain, func(o weir.Outcome) int64 { n, _ := strconv.ParseInt(o.Header.Get("Tokens-Used"), 10, 64); return n }, 88},
		{"no usage", "/204", drain, weir.ChargeUsed, 60},
		{"by status", "/503", drain, weir.RefundErrors, 100},
		{"no answer", "/", nil, weir.RefundErrors, 60},
	} {
		for _, reads := range []bool{true, false} { // whether the body is read, or the status alone must do
			base := http.RoundTripper(http.DefaultTransport)
			if reads {
				base = &llm.Transport{}
			} else if tt.path != "/once" && tt.path != "/429" {
				continue
			}
			want := tt.want
			if !reads && tt.path == "/once" {
				want = 60 // the second answer is not read
			}
			server := provider(t)
			if tt.read == nil {
				server.Close()
			}
			store := memory()
			rule := unit("tokens", 40)
			rule.Settle = tt.settle
			l := must(t, store, weir.Options{Rules: []weir.Rule{rule}, MaxWait: 10 * time.Second})
			res, err := (&http.Client{Transport: transport(t, l, weir.TransportOptions{Base: base})}).Post(server.URL+tt.path, "application/json", strings.NewReader("{}"))
			if (err == nil) != (tt.read != nil) {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if err == nil {
				if got := remains(t, store, l)[0]; got != 60 && got != 20 && !strings.HasPrefix(tt.path, "/once") {
					t.Errorf("%s: %d are left before the body is closed, want 60", tt.name, got)
				}
				tt.read(res.Body)
			}
			if got := remains(t, store, l)[0]; got != want {
				t.Errorf("%s: %d are left of 100, want %d", tt.name, got, want)
			}
			if err == nil {
				res.Body.Close()
			}
		}
	}
}

// TestTransportPanics: a Base that panics leaves the cost reserved, once.
func TestTransportPanics(t *testing.T) {
	store := memory()
	l := must(t, store, weir.Options{Rules: []weir.Rule{unit("tokens", 40)}})
	rt := transport(t, l, weir.TransportOptions{Base: roundTrip(func(*http.Request) (*http.Response, error) { panic("base") })})
	func() {
		defer func() { _ = recover() }()
		_, _ = rt.RoundTrip(ask("/", "192.0.2.1:4"))
	}()
	if got := remains(t, store, l)[0]; got != 60 {
		t.Errorf("%d are left of 100, want 60", got)
	}
}

// TestTransportRemaining: a request that costs more than the server has left is not sent, until
// more is left. The table has the fields of each response, and when the next request arrives.
func TestTransportRemaining(t *testing.T) {
	for _, tt := range []struct {
		name   string
		unit   string
		fields []string
		want   time.Duration // until a request of 20 units arrives after one of 10; a minute if MaxPause cuts it, which is logged
	}{
		{"nothing", "tokens", nil, 0},
		{"enough", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "30", "X-Ratelimit-Reset-Tokens", "10s"}, 0},
		{"too little", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "29", "X-Ratelimit-Reset-Tokens", "10s"}, 10 * time.Second},
		{"Anthropic", "output-tokens", []string{"Anthropic-Ratelimit-Output-Tokens-Remaining", "5", "Anthropic-Ratelimit-Output-Tokens-Reset", "2000-01-01T00:00:20Z"}, 20 * time.Second},
		{"the tightest", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "500", "X-Ratelimit-Reset-Tokens", "10s", "Ratelimit", `"day";r=3;t=7`, "Ratelimit-Policy", `"day";q=9;qu="tokens"`}, 7 * time.Second},
		{"another unit", "tokens", []string{"X-Ratelimit-Remaining-Images", "1", "X-Ratelimit-Reset-Images", "10s"}, 0},
		{"requests", "tokens", []string{"X-Ratelimit-Remaining", "1", "X-Ratelimit-Reset", "10"}, 0},
		{"no time", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "5"}, 0},
		{"negative", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "-5", "X-Ratelimit-Reset-Tokens", "10s"}, 0},
		{"a day", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "5", "X-Ratelimit-Reset-Tokens", "24h"}, time.Minute},
		{"of a rule in shadow", "shadow", []string{"X-Ratelimit-Remaining-Shadow", "5", "X-Ratelimit-Reset-Shadow", "10s"}, 0},
	} {
		for _, maxWait := range []time.Duration{time.Hour, 0} {
			synctest.Test(t, func(t *testing.T) {
				p := &partner{start: time.Now(), answer: func(n int, _ *http.Request) *http.Response {
					if n == 1 {
						return response(200, tt.fields...)
					}
					return nil
				}}
				var log weirtest.Log
				rule := weir.Rule{Name: "api", Key: weir.Global(), Unit: tt.unit, Limits: []weir.Limit{algorithms.FixedWindow(100, 1000*time.Hour)},
					Cost: func(r *http.Request) int64 { n, _ := strconv.ParseInt(r.URL.Query().Get("cost"), 10, 64); return n }}
				if tt.unit == "shadow" {
					rule.Enforce = weir.Percent(0)
				}
				client := &http.Client{Transport: transport(t, must(t, memory(), weir.Options{Rules: []weir.Rule{rule}, MaxWait: maxWait, Logger: slog.New(slog.NewTextHandler(&log, nil))}), weir.TransportOptions{Base: p})}
				var err error
				for _, cost := range []string{"10", "10", "20"} {
					if _, err = client.Get("http://example.com/?cost=" + cost); err != nil {
						break
					}
				}
				if cut := strings.Count(log.String(), `level=WARN msg="weir: answer of a server cut to MaxPause" rule=api part="reset of remaining units" asked=24h0m0s max_pause=1m0s`); cut != strings.Count(log.String(), "\n") || (cut == 1) != (tt.want == time.Minute) {
					t.Errorf("%s: got the log %q, want one line only if MaxPause cuts the reset", tt.name, log.String())
				}
				if cost10 := tt.want > 0 && len(p.arrivals) < 2; maxWait == 0 && tt.want > 0 {
					var refused *weir.RefusedError
					if !errors.As(err, &refused) || refused.Admission.Refusal.Reason != weir.ReasonPause || refused.RetryAfter() != tt.want || cost10 && tt.name == "too little" {
						t.Errorf("%s: got %v, want a refusal for %v", tt.name, err, tt.want)
					}
					time.Sleep(tt.want)
					if _, err = client.Get("http://example.com/?cost=20"); err != nil {
						t.Errorf("%s: after RetryAfter: %v", tt.name, err)
					}
					return
				}
				if got := time.Since(p.start); err != nil || got != tt.want {
					t.Errorf("%s: the requests have taken %v, %v, want %v", tt.name, got, err, tt.want)
				}
			})
		}
	}
}

// TestTransportRemainingAtOnce: requests that are decided at the same time together send no more
// units than the server has left. The others wait for the reset, or are refused and give their
// units back: the limit has room for all requests, each sent once.
func TestTransportRemainingAtOnce(t *testing.T) {
	for _, maxWait := range []time.Duration{time.Hour, 0} {
		synctest.Test(t, func(t *testing.T) {
			p := &partner{start: time.Now(), answer: func(n int, _ *http.Request) *http.Response {
				if n == 1 {
					return response(200, "X-Ratelimit-Remaining-Tokens", "59", "X-Ratelimit-Reset-Tokens", "10s")
				}
				return nil
			}}
			rules := []weir.Rule{
				{Name: "api", Key: weir.Global(), Unit: "tokens", Limits: []weir.Limit{algorithms.FixedWindow(210, 1000*time.Hour), algorithms.FixedWindow(300, 10_000*time.Hour)},
					Cost: func(*http.Request) int64 { return 10 }},
				{Name: "other", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(21, 1000*time.Hour)}},
			}
			l := must(t, slowly{memory()}, weir.Options{Rules: rules, MaxWait: maxWait})
			client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: p})}
			get := func(n int) (sent int) {
				var wg sync.WaitGroup
				var ok atomic.Int32
				for range n {
					wg.Go(func() {
						_, err := client.Get("http://example.com/")
						var refused *weir.RefusedError
						if err == nil {
							ok.Add(1)
						} else if !errors.As(err, &refused) || refused.Admission.Refusal.Reason != weir.ReasonPause || refused.RetryAfter() > 10*time.Second {
							t.Errorf("got %v, want a refusal for at most 10s", err)
						}
					})
				}
				wg.Wait()
				return int(ok.Load())
			}
			get(1)
			sent := get(20)
			early := 0
			for _, at := range p.arrivals[1:] {
				if d, _ := time.ParseDuration(at); d < 10*time.Second {
					early++
				}
			}
			if want := map[bool]int{true: 20, false: 5}[maxWait > 0]; early != 5 || sent != want {
				t.Errorf("MaxWait %v: %d of 20 requests were sent, %d of them before the reset, want %d and 5", maxWait, sent, early, want)
			}
			time.Sleep(10 * time.Second)
			if got := get(20 - sent); got != 20-sent {
				t.Errorf("MaxWait %v: after the reset %d requests were sent, want %d", maxWait, got, 20-sent)
			}
		})
	}
}

// slowly is a Store that takes 10 ms, in which many requests can be decided.
type slowly struct{ weir.Store }

func (s slowly) Take(ctx context.Context, t *quota.Transaction) error {
	time.Sleep(10 * time.Millisecond)
	return s.Store.Take(ctx, t)
}

// TestRetryBudget: a server that refuses everything gets a bounded share of requests again.
func TestRetryBudget(t *testing.T) {
	for budget, want := range map[float64]int{0: 500, 0.1: 119, 1: 209, 0.001: 110} {
		synctest.Test(t, func(t *testing.T) {
			p := &partner{answer: func(int, *http.Request) *http.Response { return response(429, "Retry-After", "1") }}
			client := outboundWith(t, memory(), weir.TransportOptions{Base: p, RetryBudget: budget}, weir.Options{MaxWait: 4500 * time.Millisecond}, algorithms.GCRA(1e6, time.Hour))
			for range 100 {
				if res, err := client.Get("http://example.com/"); err != nil || res.StatusCode != 429 {
					t.Fatalf("got %v, %v, want the answer of the server", res, err)
				}
				time.Sleep(time.Minute)
			}
			if got := len(p.arrivals); got != want {
				t.Errorf("a budget of %v: 100 requests were sent %d times, want %d", budget, got, want)
			}
		})
	}
	for _, budget := range []float64{-0.1, 1.1, 0 / zero} {
		if _, err := must(t, memory(), weir.Options{Rules: []weir.Rule{unit("tokens", 1)}}).Transport(weir.TransportOptions{RetryBudget: budget}); err == nil {
			t.Errorf("a budget of %v: got no error", budget)
		}
	}
}

var zero float64

// TestTransportSaysWhen: whatever refuses a request, the error says when the quota is free.
func TestTransportSaysWhen(t *testing.T) {
	const hour = time.Hour
	for _, tt := range []struct {
		name   string
		rule   weir.Rule
		before func(l *weir.Limiter, rt http.RoundTripper)
		reason weir.Reason
		want   time.Duration
	}{
		{"limit", weir.Rule{}, func(_ *weir.Limiter, rt http.RoundTripper) { send(rt) }, weir.ReasonLimit, hour},
		{"too large", weir.Rule{Cost: costs(2)}, nil, weir.ReasonLimit, quota.Never},
		{"ban", weir.Rule{Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: 2 * hour}},
			func(l *weir.Limiter, _ http.RoundTripper) { ban(t, l, "acme", 2*hour) }, weir.ReasonBan, 2 * hour},
		{"deny", weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Denied() }}, nil, weir.ReasonDeny, quota.Never},
		{"no key", weir.Rule{Key: weir.ByHeader("Missing"), NoKey: weir.NoKeyRefuse}, nil, weir.ReasonNoKey, quota.Never},
		{"pause", weir.Rule{Limits: []weir.Limit{algorithms.GCRA(1000, hour)}}, func(_ *weir.Limiter, rt http.RoundTripper) { send(rt) }, weir.ReasonPause, 40 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			rule := tt.rule
			rule.Name = "api"
			if rule.Key == nil {
				rule.Key = weir.ByHeader("X-Tenant")
			}
			if rule.Limits == nil {
				rule.Limits = []weir.Limit{algorithms.AnchoredWindow(1, hour)}
			}
			l := must(t, memory(), weir.Options{Rules: []weir.Rule{rule}})
			rt := transport(t, l, weir.TransportOptions{Base: &partner{answer: func(int, *http.Request) *http.Response {
				if tt.reason == weir.ReasonPause {
					return response(503, "Retry-After", "40")
				}
				return nil
			}}})
			if tt.before != nil {
				tt.before(l, rt)
			}
			_, err := send(rt)
			var refused *weir.RefusedError
			if !errors.As(err, &refused) || refused.Admission.Refusal.Reason != tt.reason || refused.RetryAfter() != tt.want {
				t.Errorf("%s: got %v, want reason %v and a wait of %v", tt.name, err, tt.reason, tt.want)
			}
		})
	}
	rt := transport(t, must(t, storeFunc(func(context.Context, *quota.Transaction) error { return errDown }), weir.Options{Rules: []weir.Rule{unit("tokens", 1)}}),
		weir.TransportOptions{Base: &partner{}, OnError: weir.FailClosed})
	if _, err := send(rt); !errors.Is(err, errDown) {
		t.Errorf("FailClosed: got %v, want the error of the store", err)
	}
}

func send(rt http.RoundTripper) (*http.Response, error) {
	r, _ := http.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.Header.Set("X-Tenant", "acme")
	return rt.RoundTrip(r)
}

// TestRemainingConcurrently: what a server has left is spent once by concurrent requests.
func TestRemainingConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &partner{start: time.Now(), answer: func(n int, _ *http.Request) *http.Response {
			if n == 1 {
				return response(200, "X-Ratelimit-Remaining-Tokens", "35", "X-Ratelimit-Reset-Tokens", "10s")
			}
			return nil
		}}
		rule := unit("tokens", 10)
		rule.Settle, rule.Limits = nil, []weir.Limit{algorithms.FixedWindow(1e6, 1000*time.Hour)}
		rt := transport(t, must(t, memory(), weir.Options{Rules: []weir.Rule{rule}, MaxWait: time.Minute}), weir.TransportOptions{Base: p})
		var wg sync.WaitGroup
		for range 8 {
			if _, err := send(rt); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		if got := strings.Join(p.arrivals, ", "); got != "0s, 0s, 0s, 0s, 10s, 10s, 10s, 10s" {
			t.Errorf("requests of 10 arrived at %s, of which the server had 35 left after the first", got)
		}
	})
}

// A router takes the next provider if the quota of one is used up, and tells its caller when the
// first of them is free again.
func ExampleLimiter_Transport_router() {
	serve := func(name string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"model":%q,"usage":{"prompt_tokens":200,"completion_tokens":500}}`, name)
		}))
	}
	anthropic, openai := serve("claude"), serve("gpt")
	defer anthropic.Close()
	defer openai.Close()
	providers := []string{anthropic.URL, openai.URL}

	l, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{{
		Name: "tokens", Unit: "tokens", Key: func(r *http.Request) (string, bool) { return r.URL.Host, true },
		Limits: []weir.Limit{algorithms.TokenBucket(1000, 1000, time.Minute)},
		Cost:   llm.MaxTokens(1000), Settle: weir.ChargeUsed,
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	rt, err := l.Transport(weir.TransportOptions{Base: &llm.Transport{}, OnError: weir.FailClosed})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: rt}

	route := func(body string) (answer string, retryAfter time.Duration) {
		retryAfter = quota.Never
		for _, url := range providers {
			res, err := client.Post(url, "application/json", strings.NewReader(body))
			if refused := new(weir.RefusedError); errors.As(err, &refused) {
				retryAfter = min(retryAfter, refused.RetryAfter())
				continue
			} else if err != nil {
				continue
			}
			defer res.Body.Close()
			var a struct{ Model string }
			_ = json.NewDecoder(res.Body).Decode(&a)
			return a.Model, 0
		}
		return "", retryAfter
	}
	for range 4 {
		answer, retryAfter := route(`{"max_tokens": 700}`)
		fmt.Println(answer, retryAfter.Round(time.Second))
	}
	// Output:
	// claude 0s
	// gpt 0s
	//  24s
	//  24s
}

// TestRemainingOfTwoLimits: a request under a rule of two limits spends its cost once of what the
// server says is left.
func TestRemainingOfTwoLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrived := 0
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			if arrived++; arrived == 1 {
				return response(200, "X-Ratelimit-Remaining-Tokens", "30", "X-Ratelimit-Reset-Tokens", "10s"), nil
			}
			return response(200), nil
		})
		rule := weir.Rule{Name: "api", Key: weir.Global(), Unit: "tokens", Cost: costs(10),
			Limits: []weir.Limit{algorithms.FixedWindow(100, time.Minute).Named("minute"), algorithms.FixedWindow(1000, time.Hour).Named("hour")}}
		client := &http.Client{Transport: transport(t, must(t, memory(), weir.Options{Rules: []weir.Rule{rule}}), weir.TransportOptions{Base: base})}
		for i := range 4 {
			if _, err := client.Get("http://example.com/"); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
		if _, err := client.Get("http://example.com/"); err == nil {
			t.Error("the server has nothing left, and a request is sent")
		}
	})
}

// TestUnpauseRemaining: Unpause also ends a pause that this process has made because too few units
// were left.
func TestUnpauseRemaining(t *testing.T) {
	for _, left := range []string{"0", "5"} {
		first := true
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			if !first {
				return response(200), nil
			}
			first = false
			return response(200, "X-Ratelimit-Remaining-Tokens", left, "X-Ratelimit-Reset-Tokens", "30s"), nil
		})
		rule := weir.Rule{Name: "api", Key: weir.Global(), Unit: "tokens", Cost: costs(10), Limits: []weir.Limit{algorithms.FixedWindow(100, time.Hour)}}
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}})
		client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: base})}
		_, err := client.Get("http://example.com/")
		if err != nil {
			t.Fatal(err)
		}
		var refused *weir.RefusedError
		if _, err = client.Get("http://example.com/"); !errors.As(err, &refused) || refused.Admission.Refusal.Reason != weir.ReasonPause {
			t.Errorf("%s left: got %v, want a pause", left, err)
		}
		if err := l.Unpause(t.Context(), "api", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get("http://example.com/"); err != nil {
			t.Errorf("%s left, after Unpause: %v", left, err)
		}
	}
}

// TestRetryBudgetOfSent: requests that the rules refuse are not sent, so they give no retries.
func TestRetryBudgetOfSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			sent++
			return response(429, "Retry-After", "1"), nil
		})
		rule := weir.Rule{Name: "api", Key: weir.ByHeader("K"), NoKey: weir.NoKeyRefuse, Limits: []weir.Limit{algorithms.FixedWindow(1e6, time.Hour)}}
		l := must(t, memory(), weir.Options{Rules: []weir.Rule{rule}, MaxWait: 5500 * time.Millisecond})
		client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: base, RetryBudget: 0.1})}
		for range 20 {
			r, _ := http.NewRequest("GET", "http://example.com/", nil)
			r.Header.Set("K", "k")
			if _, err := client.Do(r); err != nil {
				t.Fatal(err)
			}
			for range 100 { // refused
				_, _ = client.Get("http://example.com/")
			}
			time.Sleep(time.Minute)
		}
		if sent > 20+10+2 {
			t.Errorf("20 requests were sent %d times, want 32 at most", sent)
		}
	})
}
