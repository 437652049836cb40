package scene

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
)

// TestAdvice checks the algorithm for answers to the questions, and which answers are given up.
func TestAdvice(t *testing.T) {
	const day = 24 * 60 * 60
	for _, test := range []struct {
		trial  Trial
		want   string
		burst  int64
		gaveUp []string
	}{
		{Trial{Quota: 100, Period: 60}, "gcra", 0, nil},
		{Trial{Quota: 5, Period: 900, Exact: true}, "sliding-log", 0, nil},
		{Trial{Quota: 100_000, Period: day, Exact: true}, "gcra", 1, nil},
		{Trial{Quota: 5000, Period: 3600, Back: "hourly"}, "fixed-window", 0, nil},
		{Trial{Quota: 5000, Period: 3600, Back: "anchored"}, "anchored-window", 0, nil},
		{Trial{Quota: 10_000, Period: day, Back: "daily"}, "calendar", 0, nil},
		{Trial{Quota: 10, Period: 1, Late: "wait"}, "leaky-bucket", 10, nil},
		{Trial{Quota: 10, Period: 1, Late: "wait", Exact: true}, "leaky-bucket", 10, nil},
		{Trial{Quota: 10_000, Period: day, Late: "wait"}, "leaky-bucket", 4, nil}, // 3 × 8.64 s are less than 30 s

		{Trial{Quota: 10_000, Period: day, Back: "daily", Exact: true}, "gcra", 1, []string{"at midnight"}},
		{Trial{Quota: 10, Period: 10, Back: "hourly", Exact: true}, "sliding-log", 0, []string{"at once, on the clock"}},
		{Trial{Quota: 10, Period: 10, Back: "daily"}, "fixed-window", 0, []string{"at midnight"}},
		{Trial{Quota: 10, Period: 10, Back: "daily", Exact: true}, "sliding-log", 0, []string{"at midnight", "at once, on the clock"}},
		{Trial{Quota: 10, Period: 10, Back: "hourly", Late: "wait"}, "leaky-bucket", 10, []string{"at once, on the clock"}},
		{Trial{Quota: 5, Period: 900, Late: "wait"}, "gcra", 0, []string{"waits in a queue"}},
		{Trial{Quota: 5, Period: 900, Burst: 1, Late: "wait"}, "gcra", 0, []string{"waits in a queue"}},
		{Trial{Quota: 10_000, Period: day, Burst: 500, Late: "wait"}, "leaky-bucket", 4, []string{"at most 500 at once"}},
		{Trial{Quota: 100, Period: 1, Burst: 200, Exact: true}, "sliding-log", 0, []string{"at most 200 at once"}},
		{Trial{Quota: 100, Period: 1, Burst: 20, Exact: true}, "sliding-log", 0, []string{"at most 20 at once"}},
		{Trial{Quota: 10_000, Period: day, Burst: 20, Exact: true}, "gcra", 1, []string{"at most 20 at once"}},
		{Trial{Quota: 5000, Period: 3600, Burst: 20, Back: "hourly"}, "fixed-window", 0, []string{"at most 20 at once"}},
	} {
		outcome := compare(t, test.trial)
		got, gaveUp := outcome.Advice, []string(nil)
		for _, text := range got.GivenUp {
			answer, _, _ := strings.Cut(strings.TrimPrefix(text, "“"), "” is given up: ")
			gaveUp = append(gaveUp, answer)
		}
		if got.Algorithm != test.want || got.Burst != test.burst || got.Why == "" || got.Go == "" || got.YAML == "" || got.Test == "" {
			t.Errorf("%+v: got %+v", test.trial, got)
		}
		if !slices.Equal(gaveUp, test.gaveUp) {
			t.Errorf("%+v: gives up %q, want %q", test.trial, gaveUp, test.gaveUp)
		}
		// What is recommended never breaks an answer.
		for _, v := range outcome.Verdicts {
			if v.Algorithm == got.Algorithm && (v.Breaks || v.Error != "") {
				t.Errorf("%+v: recommends %+v", test.trial, v)
			}
		}
	}
}

// TestWhy checks the numbers of the sentences.
func TestWhy(t *testing.T) {
	for _, test := range []struct {
		trial Trial
		why   string
		says  string // what customers should know begins so
	}{
		{Trial{Quota: 100, Period: 1, Burst: 200, Deployment: Deployment{Whose: "key"}},
			"It allows 200 at once, then one every 10 ms, and keeps one number. So 1 s can hold 299: 200 at once, and 99 that become free meanwhile. Allow fewer at once if that is too many.",
			"Each API key may send 100 requests in 1 s: up to 200 at once, and then one more every 10 ms."},
		{Trial{Quota: 5, Period: 900, Exact: true, Deployment: Deployment{Whose: "account"}},
			"Up to 5 may come at once, and whatever clients send, no period of 15 min holds more than 5. It keeps a time for each request: up to 280 bytes for a client.",
			"Each account may send 5 requests in any 15 min. A request counts for 15 min; then another fits."},
		{Trial{Quota: 10_000, Period: 86400, Back: "daily"},
			"Contracts count days, and its window is a day of UTC; the code can name another time zone. Around midnight, up to 20,000 can pass within 1 day.",
			"Each client address may send 10,000 requests a day. The whole quota is back at midnight UTC."},
		{Trial{Quota: 10, Period: 10, Late: "wait"},
			"Up to 9 requests wait in a queue, and one goes ahead every 1 s. The last waits 9 s; one that finds no place is refused. No period of 10 s holds more than 10.",
			"Each client address may send one request every 1 s. Up to 9 that come earlier wait in a queue, the last of them for 9 s."},
		{Trial{Quota: 100_000, Period: 86400, Exact: true},
			"With a burst of 1, one request fits every 864 ms, and no period of 1 day holds more than 100,000. It keeps one number; a log of so many times would be too large for each client.",
			"Each client address may send one request every 864 ms, which is 100,000 in 1 day."},
	} {
		outcome := compare(t, test.trial)
		if got := outcome.Advice; got.Why != test.why || !strings.HasPrefix(got.Customers, test.says) {
			t.Errorf("%+v: got\n%s\n%s", test.trial, got.Why, got.Customers)
		}
		for _, v := range outcome.Verdicts {
			if v.Algorithm == "sliding-log" && outcome.Advice.Algorithm == v.Algorithm && !strings.Contains(outcome.Advice.Why, fmt.Sprintf(" %d bytes", v.Bytes)) {
				t.Errorf("the table says %d bytes, and the sentence %q", v.Bytes, outcome.Advice.Why)
			}
		}
	}
}

// TestHeaders: the header fields that customers are told about are those that they get.
func TestHeaders(t *testing.T) {
	set, err := parseLink("quota=1&period=60")
	if err != nil {
		t.Fatal(err)
	}
	k := kindOf("gcra")
	handler := weir.Middleware(memstore.New(memstore.Options{}), "api", weir.ByIP(), k.limitOf(&set))(http.NotFoundHandler())
	fields := regexp.MustCompile(`[A-Z][A-Za-z]*(-[A-Z][A-Za-z]+)+`).FindAllString(code{k, &set, Deployment{}}.customers(), -1)
	if len(fields) != 4 {
		t.Errorf("the fields are %v", fields)
	}
	for _, status := range []int{404, 429} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != status {
			t.Errorf("got %d, want %d", w.Code, status)
		}
		for _, field := range fields {
			if (w.Header().Get(field) == "") != (field == "Retry-After" && status == 404) {
				t.Errorf("%d: %s is %q", status, field, w.Header().Get(field))
			}
		}
	}
}
