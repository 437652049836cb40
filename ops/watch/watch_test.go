package watch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
)

func limiter(t testing.TB, store weir.Store, observe func(weir.Event), rules ...weir.Rule) *weir.Limiter {
	t.Helper()
	l, err := weir.New(store, weir.Options{Rules: rules, Observe: observe, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func rule(name string, key weir.KeyFunc, units int64) weir.Rule {
	return weir.Rule{Name: name, Key: key, Limits: []weir.Limit{algorithms.FixedWindow(units, 1000*time.Hour)}}
}

func ask(h http.Handler, fields ...string) {
	r := httptest.NewRequest("GET", "/", nil) // from 192.0.2.1
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	h.ServeHTTP(httptest.NewRecorder(), r)
}

func refused(key string) weir.Event {
	return weir.Event{Key: key, Refusal: weir.Refusal{Reason: weir.ReasonLimit, Rule: "api"}, Transaction: &quota.Transaction{
		Charges: []quota.Charge{{Rule: "api", Key: key}}, Result: quota.Result{At: time.Now(), Decisions: make([]quota.Decision, 1)},
	}}
}

// TestZeroRecorder: the zero value of a Recorder is ready to use, whichever method is called first.
func TestZeroRecorder(t *testing.T) {
	event := refused("k")
	event.Transaction.Charges[0] = quota.Charge{Rule: "api", Key: "k", Limit: algorithms.GCRA(1, time.Hour), Cost: 1}
	ban := weir.Event{Key: "k", Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: "api", RetryAfter: time.Hour}, Transaction: &quota.Transaction{}}
	for name, first := range map[string]func(*watch.Recorder){
		"Observe": func(*watch.Recorder) {}, "Bans": func(r *watch.Recorder) { r.Bans() }, "Failure": func(r *watch.Recorder) { r.Failure() },
		"Find": func(r *watch.Recorder) { r.Find("api", "k") }, "History": func(r *watch.Recorder) { r.History("") },
		"Recent": func(r *watch.Recorder) { r.Recent(1) }, "Top": func(r *watch.Recorder) { r.Top(time.Hour) },
		"Try": func(r *watch.Recorder) { r.Try("api", algorithms.GCRA(1, time.Hour)) }, "Warnings": func(r *watch.Recorder) { r.Warnings(time.Hour) },
	} {
		r := new(watch.Recorder)
		first(r)
		r.Observe(event)
		r.Observe(ban)
		keys, _ := r.Top(time.Hour)
		trial, err := r.Try("api", algorithms.GCRA(1, time.Hour))
		if len(keys) != 1 || len(r.Recent(9)) == 0 || len(r.Bans()) != 1 || err != nil || trial.Requests != 1 {
			t.Errorf("%s first: got the keys %v, lines %v, bans %v, and the trial %+v, error %v", name, keys, r.Recent(9), r.Bans(), trial, err)
		}
	}
}

// TestTop: for a random stream of refusals, Count and Error bound the exact number of refusals of
// a key, and no key with more than 1/n of all refusals is missing.
func TestTop(t *testing.T) { synctest.Test(t, testTop) }

func testTop(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	zipf := rand.NewZipf(r, 1.2, 1, 10_000)
	const n, events = 50, 20_000
	recorder, exact := watch.NewRecorder(n, 1), map[string]int64{}
	for range events {
		key := fmt.Sprint(zipf.Uint64())
		exact[key]++
		recorder.Observe(refused(key))
		time.Sleep(100 * time.Millisecond) // 33 minutes in all
	}
	found := map[string]bool{}
	for _, k := range keysOf(recorder) {
		found[k.Key] = true
		if want := exact[k.Key]; k.Count < want || k.Count-k.Error > want {
			t.Errorf("seed %d: %s: got %d with an error of %d, want %d", seed, k.Key, k.Count, k.Error, want)
		}
	}
	for key, count := range exact {
		if count > events/n && !found[key] {
			t.Errorf("seed %d: %s is missing, which was refused %d times", seed, key, count)
		}
	}
	keys := keysOf(recorder)
	if len(keys) != n || !slices.IsSortedFunc(keys, func(a, b watch.Refused) int { return int(b.AtLeast() - a.AtLeast()) }) {
		t.Errorf("seed %d: got %d keys, or not in order: %v", seed, len(keys), keys)
	}
}

// keysOf returns the keys of the last hour.
func keysOf(recorder *watch.Recorder) []watch.Refused {
	keys, _ := recorder.Top(time.Hour)
	return keys
}

// brief returns what Keys returns, without times.
func brief(keys []watch.Refused) string {
	var text []string
	for _, k := range keys {
		text = append(text, fmt.Sprintf("%s %s %d %d %v", k.Rule, k.Key, k.Count, k.Error, k.Reason))
	}
	return strings.Join(text, ", ")
}

// TestTopReplaces: a new key replaces the key with the lowest count, wherever the counts grew.
func TestTopReplaces(t *testing.T) {
	for lowest := range 7 {
		recorder := watch.NewRecorder(7, 1)
		for round := range 9 {
			for i := range 7 {
				if i != lowest || round == 0 {
					recorder.Observe(refused(fmt.Sprint(i)))
				}
			}
		}
		recorder.Observe(refused("new"))
		if r, _ := recorder.Find("api", "new"); r.Count != 2 || r.Error != 1 {
			t.Errorf("the new key: got %+v, want a count of 2 with an error of 1", r)
		}
		if r, ok := recorder.Find("api", fmt.Sprint(lowest)); ok {
			t.Errorf("the lowest key is still there: %+v", r)
		}
	}
}

// BenchmarkTop measures the refusal of a new key by a Top that is full, as in an attack from
// many addresses.
func BenchmarkTop(b *testing.B) {
	recorder, i := watch.NewRecorder(1000, 1), 0
	e := weir.Event{Transaction: &quota.Transaction{
		Charges: []quota.Charge{{Rule: "r"}}, Result: quota.Result{Decisions: []quota.Decision{{}}},
	}, Refusal: weir.Refusal{Reason: weir.ReasonLimit, Rule: "r"}}
	e.Transaction.At = time.Now()
	b.ReportAllocs()
	for b.Loop() {
		i++
		e.Transaction.Charges[0].Key = strconv.Itoa(i)
		recorder.Observe(e)
	}
}

// TestTopCounts: a request counts once for each rule that refuses it, and not for other rules.
func TestTopCounts(t *testing.T) {
	recorder := watch.NewRecorder(10, 1)
	shadow := rule("shadow", weir.Global(), 1)
	shadow.Enforce = weir.Percent(0)
	two := rule("two", weir.ByHeader("Key"), 1)
	two.ForKey = func(string) weir.Policy { return weir.Policy{} } // a rule that has it may have redundant limits
	two.Limits = []weir.Limit{algorithms.FixedWindow(1, time.Hour), algorithms.FixedWindow(1, 1000*time.Hour)}
	h := limiter(t, memstore.New(memstore.Options{}), recorder.Observe, two, rule("one", weir.ByIP(), 2), shadow).Handler(http.NotFoundHandler())
	for _, key := range []string{"a", "b", "a", "c"} {
		ask(h, "Key", key)
	}
	if got, want := brief(keysOf(recorder)), "one 192.0.2.1 2 0 limit, shadow  1 0 limit, two a 1 0 limit"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if r, ok := recorder.Find("shadow", ""); !ok || !r.Shadow {
		t.Errorf("the rule in shadow: got %+v, want Shadow", r)
	}
	for _, f := range []weir.Refusal{{Reason: weir.ReasonBan, Rule: "api"}, {Reason: weir.ReasonDeny, Rule: "api"}, {Reason: weir.ReasonBan, Rule: "one"}} {
		recorder.Observe(weir.Event{Transaction: &quota.Transaction{}, Refusal: f, Key: "x"}) // as if the store was not asked
	}
	recorder.Observe(weir.Event{Transaction: &quota.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonNoKey, Rule: "zone"}})
	if got, want := brief(keysOf(recorder)), "api x 2 0 deny, one 192.0.2.1 2 0 limit, one x 1 0 ban, shadow  1 0 limit, two a 1 0 limit, zone  1 0 no-key"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				recorder.Observe(refused(fmt.Sprint(i)))
			}
		})
	}
	wg.Wait()
	if n := len(keysOf(recorder)); n != 10 {
		t.Errorf("got %d keys, want 10", n)
	}
}

func logger() (*bytes.Buffer, *slog.Logger) {
	var b bytes.Buffer
	return &b, slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}}))
}

type storeFunc func(context.Context, *quota.Transaction) error

func (f storeFunc) Take(ctx context.Context, t *quota.Transaction) error { return f(ctx, t) }

// TestLog: refusals, denials, bans and errors are logged with their keys, at most one line in half
// a second. The next line says how many were left out.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, l := logger()
		pests, _ := weir.KeyList("pest")
		api := rule("api", weir.ByHeader("Key"), 1)
		api.ForKey, api.Penalty = weir.When(pests, weir.Denied()), &weir.Penalty{Strikes: algorithms.FixedWindow(6, time.Hour), Duration: time.Minute}
		mem, gone := memstore.New(memstore.Options{}), false
		h := limiter(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if gone {
				return errors.New("gone")
			}
			return mem.Take(ctx, tx)
		}), watch.Log(l, 2, func(_, key string) string { return "<" + key + ">" }), api).Handler(http.NotFoundHandler())
		for range 6 {
			ask(h, "Key", "a")
		}
		time.Sleep(time.Second)
		ask(h, "Key", "pest")
		time.Sleep(500 * time.Millisecond)
		ask(h, "Key", "a") // the sixth refusal: banned
		time.Sleep(time.Second)
		gone = true
		ask(h, "Key", "b")
		want := `msg="watch: request refused" rule=api limit=1000h retry_after=`
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 4 {
			t.Fatalf("got %d lines, want 4: %s", len(lines), out)
		}
		for i, want := range []string{want, `msg="watch: request refused" rule=api reason=deny key=<pest> unlogged=4`, `msg="watch: request refused" rule=api retry_after=`, `msg="watch: request not decided" rule=api reason=error err=gone cause=error passed=true key=<b>`} {
			if !strings.Contains(lines[i], want) {
				t.Errorf("line %d: got %s, want %s", i, lines[i], want)
			}
		}
		if strings.Contains(lines[2], "unlogged") {
			t.Errorf("line 2: got %s, want nothing left out since the line before", lines[2])
		}
		if !strings.Contains(lines[0], "key=<a>") {
			t.Errorf("got %s, want a key", lines[0])
		}
	})
}

// TestLogKeys: if the function for keys is nil, no key is logged.
func TestLogKeys(t *testing.T) {
	out, l := logger()
	h := limiter(t, memstore.New(memstore.Options{}), watch.Log(l, 0, nil), rule("api", weir.ByIP(), 1)).Handler(http.NotFoundHandler())
	ask(h)
	ask(h)
	if got := out.String(); !strings.Contains(got, "refused") || strings.Contains(got, "192.0.2.1") {
		t.Errorf("got %s, want a refusal without its key", got)
	}
}

// TestDiagnose: each error is logged once with its code, and a correct configuration logs
// nothing.
func TestDiagnose(t *testing.T) {
	everyone := weir.ByHeader("X-Forwarded-For")
	mem := func() weir.Store { return memstore.New(memstore.Options{}) }
	clock := func(off time.Duration) weir.Store {
		return storeFunc(func(_ context.Context, tx *quota.Transaction) error {
			tx.Decide(time.Now().Add(off).UnixMicro(), make([]quota.State, len(tx.Charges)))
			return nil
		})
	}
	for _, tt := range []struct {
		name   string
		store  weir.Store
		key    weir.KeyFunc
		nested bool
		fields []string
		want   string
	}{
		{"well", mem(), weir.ByIP(), false, nil, ""},
		{"behind a proxy that is trusted", mem(), weir.ByIP(netip.MustParsePrefix("192.0.2.0/24")), false, []string{"X-Forwarded-For", "198.51.100.9"}, ""},
		{"everyone trusted", mem(), everyone, false, nil, "WEIR001"},
		{"a key that panics when probed", mem(), func(r *http.Request) (string, bool) { return r.Header["Key"][0], true }, false, []string{"Key", "a"}, ""},
		{"nested", mem(), weir.ByIP(), true, nil, "WEIR002"},
		{"a clock that is ahead", clock(time.Minute), weir.ByIP(), false, nil, "WEIR003"},
		{"a clock that is behind", clock(-time.Minute), weir.ByIP(), false, nil, "WEIR003"},
		{"a clock that is a bit off", clock(500 * time.Millisecond), weir.ByIP(), false, nil, ""},
		{"failing", storeFunc(func(context.Context, *quota.Transaction) error { return errors.New("gone") }), weir.ByIP(), false, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, l := logger()
			r := rule("api", tt.key, 100)
			observe := watch.Diagnose(l, []weir.Rule{r})
			h := limiter(t, tt.store, observe, r).Handler(http.NotFoundHandler())
			if tt.nested {
				h = limiter(t, tt.store, observe, r).Handler(h)
			} else { // a rule of the same name with another key is no error
				h = limiter(t, mem(), nil, rule("api", weir.ByHeader("Other"), 100)).Handler(h)
			}
			tt.fields = append(tt.fields, "Other", "else")
			ask(h, tt.fields...)
			ask(h, tt.fields...) // within a minute, so it is not logged again
			codes := strings.Join(regexp.MustCompile(`WEIR\d+`).FindAllString(out.String(), -1), " ")
			if codes != tt.want {
				t.Errorf("got %q, want %q: %s", codes, tt.want, out)
			}
		})
	}
}

// TestDiagnoseRepeats: while an error persists, such as a clock that is wrong, it is logged once a
// minute.
func TestDiagnoseRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, l := logger()
		observe := watch.Diagnose(l, []weir.Rule{rule("api", weir.ByIP(), 100)})
		for range 10 { // in five minutes
			e := refused("a")
			e.Request, e.Transaction.At = httptest.NewRequest("GET", "/", nil), time.Now().Add(-time.Hour)
			e.Transaction.Charges[0].Cost = 1
			observe(e)
			time.Sleep(30 * time.Second)
		}
		if got := strings.Count(out.String(), "WEIR003"); got != 5 {
			t.Errorf("got %d lines in five minutes, want 5: %s", got, out)
		}
	})
}

// TestDocumented: DIAGNOSTICS.md has a section for every code, and for no other.
func TestDocumented(t *testing.T) {
	source, err := os.ReadFile("diagnose.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("DIAGNOSTICS.md")
	if err != nil {
		t.Fatal(err)
	}
	var codes, titles []string
	for _, m := range regexp.MustCompile(`= "(WEIR\d+)"`).FindAllSubmatch(source, -1) {
		codes = append(codes, string(m[1]))
	}
	for _, m := range regexp.MustCompile(`(?m)^## (WEIR\d+): `).FindAllSubmatch(page, -1) {
		titles = append(titles, string(m[1]))
	}
	if len(codes) == 0 || !slices.Equal(codes, titles) {
		t.Errorf("got codes %v in the source, %v in the page", codes, titles)
	}
}

func Example() {
	recorder := watch.NewRecorder(10, 1)
	rules := []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}
	log, diagnose := watch.Log(nil, 10, nil), watch.Diagnose(nil, rules)
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules: rules,
		Observe: func(e weir.Event) {
			recorder.Observe(e)
			log(e)
			diagnose(e)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	keys, _ := recorder.Top(5 * time.Minute)
	for _, k := range keys {
		fmt.Println(k.Rule, k.Key, k.Count, k.Reason)
	}
	for _, l := range recorder.Recent(10) {
		fmt.Println(l.Rule, l.Key, l.Count, l.Reason, l.Limit, l.Route)
	}
	// Output:
	// api 192.0.2.1 3 limit
	// api 192.0.2.1 3 limit 1h GET /
}
