package admin_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A sick store fails while err is set.
type sick struct {
	weir.Store
	err atomic.Pointer[error]
}

func (s *sick) Take(ctx context.Context, t *quota.Transaction) error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return s.Store.Take(ctx, t)
}

// findings returns what stands out on the page, and its status, as text.
func findings(t *testing.T, h http.Handler) (found, status string) {
	t.Helper()
	page := send(h, "GET", "/", "").Body.String()
	text := func(id string) string {
		_, part, _ := strings.Cut(page, `<section id="`+id+`"`)
		part, _, _ = strings.Cut(part[strings.Index(part, ">")+1:], "</section>")
		return strings.Join(strings.Fields(html.UnescapeString(regexp.MustCompile("<[^>]*>").ReplaceAllString(part, " "))), " ")
	}
	return strings.TrimPrefix(text("findings"), "What stands out "), text("status")
}

// TestFindings: the page names the cause of each of these faults within the minute in which it
// occurs, and names nothing when there is none.
func TestFindings(t *testing.T) {
	outage := errors.New("dial tcp 10.0.0.7:6379: connection refused")
	for _, tt := range []struct {
		name     string
		limit    int64 // of 1 minute
		shadow   float64
		requests int // of each client, one client after another
		clients  int
		hammer   int // requests of one more client
		fallback bool
		err      error
		want     []string
		not      string
		status   []string
	}{
		{name: "quiet", limit: 1000, requests: 3, clients: 50, want: []string{"Nothing. No rule refuses"}, status: []string{"Refused 0/s", "Not decided 0/s"}},
		{name: "a few refusals", limit: 3, requests: 3, clients: 2, hammer: 22, want: []string{"Nothing."}},
		{name: "a few refusals of all", limit: 1, requests: 4, clients: 3, want: []string{"Nothing."}},
		{name: "one client", limit: 100, requests: 3, clients: 50, hammer: 500,
			want: []string{`One key causes 100 % of the refusals by rule "api" in the last 5 minutes: "hammer" (400, limited, last refused 1 s ago). Look up Ban`}},
		{name: "a limit of 1 for 1000", limit: 1, requests: 20, clients: 50,
			want: []string{`Rule "api" refuses 95 % of its requests in the last minute, from at least 50 keys. It allows 1 per 1m. Is this limit intended? Its refusals`}},
		{name: "a limit of 1 for 1000, and one client", limit: 1, requests: 20, clients: 50, hammer: 2000,
			want: []string{`Rule "api" refuses many keys besides the most frequent one: at least 51 keys in the last minute, in which it allowed 51 requests. It allows 1 per 1m. Is this limit intended?`,
				`One key causes 68 % of the refusals by rule "api" in the last 5 minutes: "hammer" (1,999, `}},
		{name: "one client, and a few of others", limit: 10, requests: 11, clients: 50, hammer: 1000,
			want: []string{`"hammer" (990, limited`}, not: "many keys"},
		{name: "in shadow", limit: 1, shadow: 1, requests: 20, clients: 50,
			want: []string{`Rule "api" is in shadow, and would refuse 95 % of its requests`}},
		{name: "the store is down", limit: 1000, requests: 3, clients: 50, err: outage,
			want:   []string{"150 of 150 requests in the last minute could not be decided, because the store cannot be reached, or answers with an error: 150 were allowed without a limit, and 0 were refused with 503."},
			status: []string{"Not decided", "150 allowed"}},
		{name: "the store is busy", limit: 1000, requests: 3, clients: 50, err: quota.ErrBusy,
			want: []string{"because the store is busy: 0 were allowed without a limit, and 150 were refused with 503."}},
		{name: "the store cannot work", limit: 1000, requests: 3, clients: 50, err: fmt.Errorf("NOAUTH: %w", quota.ErrUnusable), fallback: true,
			want: []string{"The store has failed since 00:00:00 UTC, because the store cannot work as it is set up. This process decides alone, by what it counts in its own memory. "}},
		{name: "a fallback", limit: 1000, requests: 3, clients: 50, err: outage, fallback: true,
			want:   []string{"The store has failed since 00:00:00 UTC, because the store cannot be reached, or answers with an error. This process decides alone", "The log has the error. Once the store works, this process uses it again by itself."},
			status: []string{"Fallback decides 150 so far, the last 1 s ago", "Breaker open", "Counts in memory now"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quiet := slog.New(slog.DiscardHandler)
				primary := &sick{Store: memstore.New(memstore.Options{})}
				var store weir.Store = primary
				breaker := quota.Breaker(primary, quota.BreakerOptions{Logger: quiet})
				if tt.fallback {
					store = quota.Fallback(breaker, memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: quiet})
				}
				recorder := watch.NewRecorder(100, 1000)
				rule := weir.Rule{Name: "api", Key: byUser, Limits: []weir.Limit{algorithms.AnchoredWindow(tt.limit, time.Minute)}, Enforce: weir.Percent(100 - 100*tt.shadow),
					Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(10_000, time.Minute), Duration: time.Minute}}
				l, err := weir.New(store, weir.Options{Rules: []weir.Rule{rule}, Logger: quiet, Observe: recorder.Observe})
				if err != nil {
					t.Fatal(err)
				}
				if tt.fallback {
					store = stack{store, []weir.Store{breaker, store, store}} // the page shows each store once
				}
				h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Recorder: recorder, Logger: quiet})
				if err != nil {
					t.Fatal(err)
				}
				if found, _ := findings(t, h); !strings.HasPrefix(found, "Nothing.") {
					t.Errorf("before: got %s", found)
				}
				if tt.err != nil {
					primary.err.Store(&tt.err)
				}
				for i := range tt.clients {
					spend(l, fmt.Sprint("client", i), tt.requests)
					time.Sleep(30 * time.Millisecond)
				}
				spend(l, "hammer", tt.hammer)
				time.Sleep(time.Second)
				found, status := findings(t, h)
				for _, want := range tt.want {
					if !strings.Contains(found, want) {
						t.Errorf("got %s, want %s", found, want)
					}
				}
				if tt.not != "" && strings.Contains(found, tt.not) {
					t.Errorf("got %s, want nothing about %s", found, tt.not)
				}
				for _, want := range tt.status {
					if !strings.Contains(status, want) {
						t.Errorf("got the status %s, want %s", status, want)
					}
				}
				if strings.Contains(found+status, "10.0.0.7") {
					t.Errorf("the page shows the text of an error: %s", found)
				}
				if tt.fallback { // the fallback is in use until the first store has decided for a second
					primary.err.Store(nil)
					time.Sleep(time.Minute)
					spend(l, "after", 1)
					time.Sleep(2 * time.Second)
					spend(l, "after", 1)
				}
				time.Sleep(2 * time.Minute)
				if found, _ := findings(t, h); !strings.HasPrefix(found, "Nothing.") {
					t.Errorf("two minutes later: got %s", found)
				}
				if tt.fallback { // a second outage is told from the first
					primary.err.Store(&outage)
					spend(l, "again", 1)
					time.Sleep(time.Second)
					spend(l, "again", 1)
					if found, _ := findings(t, h); !strings.Contains(found, "The store has failed since 00:03:") {
						t.Errorf("in a second outage: got %s", found)
					}
				}
			})
		})
	}
}

// TestStatusBarFallback: one decision of a fallback is a note, although no request has ended the state, and
// the status is red while a fallback goes on deciding. For 15 minutes after it, the page tells from when
// to when that was, and why.
func TestStatusBarFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		primary := &sick{Store: memstore.New(memstore.Options{})}
		store := quota.Fallback(primary, memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: quiet})
		l, err := weir.New(store, weir.Options{Rules: []weir.Rule{hourly("api", 1000)}, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(when, note, class, found string) {
			t.Helper()
			list, status := findings(t, h)
			page := send(h, "GET", "/", "").Body.String()
			if !strings.Contains(status, note) || !strings.Contains(page, `<div`+class+`><dt>Fallback`) || !strings.HasPrefix(list, found) {
				t.Errorf("%s: got the status %s and %s, want %q, %q and %q", when, status, list, note, class, found)
			}
		}
		expect("all is well", "Fallback not in use Counts in the store", "", "Nothing.")
		timeout := error(redisstore.ErrTimeout)
		primary.err.Store(&timeout)
		spend(l, "alice", 1)
		expect("at once", "Fallback not in use 1 so far, the last 1 s ago Counts in the store", ` class="warn"`, "Nothing.")
		time.Sleep(14 * time.Second)
		expect("a timeout", "Fallback not in use 1 so far, the last 14 s ago", ` class="warn"`, "Nothing.")
		for range 3 {
			spend(l, "alice", 1)
			time.Sleep(2 * time.Second)
		}
		expect("a state that goes on", "Fallback decides 4 so far, the last 2 s ago Counts in memory now", ` class="bad"`, "The store has failed since 00:00:00 UTC, because the store did not answer in time. ")
		const outage = "The store failed from 00:00:00 UTC to 00:00:20 UTC, because the store cannot be reached, or answers with an error. In that time this process decided alone, by what it counted in its own memory."
		refused := errors.New("connection refused") // the server, which hung, has died
		primary.err.Store(&refused)
		spend(l, "alice", 1)
		expect("another cause", "Fallback decides 5 so far", ` class="bad"`, "The store has failed since 00:00:00 UTC, because the store cannot be reached, or answers with an error. ")
		time.Sleep(20 * time.Second)
		expect("no more requests", "Fallback not in use 5 so far, the last 20 s ago", ` class="warn"`, outage)
		if list, _ := findings(t, h); strings.Contains(list, "decides again") {
			t.Errorf("no request has found the store at work: got %s", list)
		}
		primary.err.Store(nil)
		spend(l, "alice", 1)
		time.Sleep(time.Minute)
		expect("after a minute", "Fallback not in use 5 so far Counts in the store", "", outage+" The store decides again.")
		time.Sleep(14 * time.Minute)
		expect("it is forgotten", "Fallback not in use 5 so far Counts in the store", "", "Nothing.")
	})
}

// TestOutages: of several fallbacks, the page reports the one that decides, or else of the longest outage
// of the last 15 minutes, also if a store has failed once since. While a fallback decides, no store is said to decide again.
func TestOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		var primary [2]*sick
		var limiters []*weir.Limiter
		var stores []weir.Store
		for i := range primary {
			primary[i] = &sick{Store: memstore.New(memstore.Options{})}
			stores = append(stores, quota.Fallback(primary[i], memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: quiet}))
			l, err := weir.New(stores[i], weir.Options{Rules: []weir.Rule{hourly("api", 1000)}, Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			limiters = append(limiters, l)
		}
		h, err := admin.New(stack{stores[0], append(stores, addressed{primary[1]})}, admin.Options{Limiters: func() []*weir.Limiter { return limiters }, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(i int, err error) {
			primary[i].err.Store(&err)
			if err == nil {
				primary[i].err.Store(nil)
			}
			spend(limiters[i], "alice", 1)
		}
		expect := func(when, want string) {
			t.Helper()
			if list, _ := findings(t, h); !strings.HasPrefix(list, want) || strings.Contains(list, "decides again") {
				t.Errorf("%s: got %s, want %s", when, list, want)
			}
		}
		for range 11 {
			ask(0, errors.New("connection refused"))
			time.Sleep(time.Second)
		}
		ask(1, redisstore.ErrTimeout)
		expect("one goes on", "The store has failed since 00:00:00 UTC, because the store cannot be reached")
		ask(0, nil)
		const outage = "The store failed from 00:00:00 UTC to 00:00:10 UTC, because the store cannot be reached, or answers with an error. In that time this process decided alone, by what it counted in its own memory."
		ask(1, redisstore.ErrTimeout)
		expect("the other has failed once", outage)
		ask(0, redisstore.ErrTimeout)
		expect("it has failed once again", outage)
		ask(0, nil)
		for range 4 { // a shorter outage does not hide it
			ask(1, redisstore.ErrTimeout)
			findings(t, h)
			time.Sleep(time.Second)
		}
		ask(1, nil)
		expect("another was shorter", outage)
		time.Sleep(16 * time.Minute)
		expect("it is forgotten", "Nothing.")
	})
}

// TestRateNow: the rate of a key is that of now, not of 5 minutes, also at the beginning of a minute.
func TestRateNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		store, recorder := memstore.New(memstore.Options{}), watch.NewRecorder(100, 1000)
		l, err := weir.New(store, weir.Options{Rules: []weir.Rule{hourly("api", 1)}, Logger: quiet, Observe: recorder.Observe})
		if err != nil {
			t.Fatal(err)
		}
		h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Recorder: recorder, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(when, want string) {
			t.Helper()
			_, got, _ := strings.Cut(send(h, "GET", "/", "").Body.String(), `data-label="rate now">`)
			if got, _, _ = strings.Cut(got, "<"); got != want {
				t.Errorf("%s: got %s, want %s", when, got, want)
			}
		}
		flood := func(seconds int) { // 10 a second
			for range seconds {
				spend(l, "mallory", 10)
				time.Sleep(time.Second)
			}
		}
		spend(l, "mallory", 1)
		time.Sleep(4 * time.Minute)
		flood(30)
		expect("half a minute", "10/s")
		flood(35)
		expect("at the beginning of a minute", "10/s")
		time.Sleep(2 * time.Minute)
		expect("after it", "0/s")
	})
}

// TestFindingsOfAddress: the page says that the clients at an address share a key that is refused above
// all, and so does the form that bans it.
func TestFindingsOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		store, recorder := memstore.New(memstore.Options{}), watch.NewRecorder(100, 1000)
		client := weir.Rule{Name: "client", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.AnchoredWindow(1, time.Hour)},
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(10_000, time.Minute), Duration: time.Minute}}
		l, err := weir.New(store, weir.Options{Rules: []weir.Rule{client, hourly("user", 1)}, Logger: quiet, Observe: recorder.Observe})
		if err != nil {
			t.Fatal(err)
		}
		h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Recorder: recorder, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		spend(l, "mallory", 50)
		list, _ := findings(t, h)
		if want := "last refused 1 s ago). All clients at this address share the key. Look up"; !strings.Contains(list, want) {
			t.Errorf("got %s, want %s", list, want)
		}
		if want := `the refusals by rule "user" in the last 5 minutes: "mallory"`; !strings.Contains(list, want) || strings.Count(list, "share the key") != 1 {
			t.Errorf("got %s, want %s, which is no address", list, want)
		}
		page := send(h, "GET", "/?do=ban&rule=client&key=192.0.2.1", "").Body.String()
		if want := "and so is every client that shares the address, such as the users of an office. You can undo this."; !strings.Contains(page, want) {
			t.Errorf("got %s, want %s", page, want)
		}
	})
}

// A changed file knows what its last reload changed, and what its rules read.
type changed struct {
	dated
	changes []string
}

func (changed) Err() error          { return nil }
func (f changed) Changed() []string { return f.changes }

// TestFindingsOfFile: the page names what the last reload changed, for 15 minutes, among the findings and
// on the tab of changes.
func TestFindingsOfFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		quiet := slog.New(slog.DiscardHandler)
		store, recorder := memstore.New(memstore.Options{}), watch.NewRecorder(100, 1000)
		api := weir.Rule{Name: "api", Key: byUser, Limits: []weir.Limit{algorithms.AnchoredWindow(12, time.Minute)}}
		l, err := weir.New(store, weir.Options{Rules: []weir.Rule{api}, Logger: quiet, Observe: recorder.Observe})
		if err != nil {
			t.Fatal(err)
		}
		f := &changed{changes: []string{"api: limit 1m (anchored-window): 120 per 1m → 12 per 1m", "tenant: added: 5 per 1m", "apis: limit 1m: 1 per 1m → 2 per 1m"}}
		h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Recorder: recorder, Logger: quiet, File: f})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(when string, want, not []string) {
			t.Helper()
			list, _ := findings(t, h)
			for _, w := range want {
				if !strings.Contains(list, w) {
					t.Errorf("%s: got %s, want %s", when, list, w)
				}
			}
			for _, n := range not {
				if strings.Contains(list, n) {
					t.Errorf("%s: got %s, want nothing of %s", when, list, n)
				}
			}
		}
		const (
			hint = "It allows 12 per 1m. Is this limit intended? If not, correct it in the rules file. Its refusals"
			file = "The file of rules was read 7 s ago, at 01:00:07 UTC, and changed api: limit 1m (anchored-window): 120 per 1m → 12 per 1m; tenant: added: 5 per 1m; apis: limit 1m: 1 per 1m → 2 per 1m."
		)
		for i := range 30 { // before the reload
			spend(l, fmt.Sprint("early", i), 10)
		}
		time.Sleep(7 * time.Second)
		f.at = time.Now()
		expect("at once", []string{"and changed api: limit 1m"}, []string{"many keys"})
		time.Sleep(4 * time.Second)
		for i := range 19 {
			spend(l, fmt.Sprint("client", i), 100)
		}
		time.Sleep(3 * time.Second)
		expect("a low limit", []string{hint, file}, nil)
		if page := html.UnescapeString(send(h, "GET", "/?tab=changes", "").Body.String()); !strings.Contains(page, file) {
			t.Errorf("the tab of changes: got %s, want %s", page, file)
		}
		time.Sleep(15 * time.Minute)
		expect("15 minutes later", []string{"Nothing."}, nil)
	})
}

// A dated file knows when it was loaded.
type dated struct {
	file
	at time.Time
}

func (f dated) Loaded() time.Time { return f.at }

// A stack consists of several stores, like one of package stack.
type stack struct {
	weir.Store
	stores []weir.Store
}

func (s stack) Stores() []weir.Store { return s.stores }

// An addressed store knows the addresses of its servers.
type addressed struct{ weir.Store }

func (addressed) Addrs() []string { return []string{"10.0.0.1:6379", "10.0.0.2:6379"} }

// TestStatusBar: a single timeout is a note, and the status is red while requests go on failing. The status
// says where the counts are, and when the file was read.
func TestStatusBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		store, recorder := &sick{Store: memstore.New(memstore.Options{})}, watch.NewRecorder(1, 1000)
		l, err := weir.New(store, weir.Options{Rules: []weir.Rule{hourly("api", 1000)}, Logger: quiet, Observe: recorder.Observe})
		if err != nil {
			t.Fatal(err)
		}
		h, err := admin.New(addressed{store}, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Recorder: recorder, Logger: quiet,
			File: dated{at: time.Now().Add(-3 * time.Hour)}})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(when, note string, red bool) {
			t.Helper()
			_, status := findings(t, h)
			page := send(h, "GET", "/", "").Body.String()
			if !strings.Contains(status, note) || strings.Contains(page, `<div class="bad"><dt>Not decided`) != red {
				t.Errorf("%s: got the status %s, want %q, red %v", when, status, note, red)
			}
			for _, want := range []string{"Counts in Redis 10.0.0.1:6379, 10.0.0.2:6379", "v7 read 3 h ago, 3 reloaded, 2 failed"} {
				if !strings.Contains(status, want) {
					t.Errorf("%s: got the status %s, want %s", when, status, want)
				}
			}
		}
		request := func(err error) {
			if store.err.Store(nil); err != nil {
				store.err.Store(&err)
			}
			spend(l, "alice", 1)
		}
		request(nil)
		expect("all is well", "Not decided 0/s", false)
		request(redisstore.ErrTimeout)
		request(nil)
		time.Sleep(14 * time.Second)
		expect("a timeout", "1 timeout, 14 s ago, 1 allowed", false)
		for range 6 {
			request(quota.ErrBusy)
			time.Sleep(2 * time.Second)
		}
		expect("a state that goes on", "7 errors, the last 2 s ago, 1 allowed", true)
		request(nil)
		time.Sleep(20 * time.Second)
		expect("it is over", "7 errors, the last 22 s ago", false)
		time.Sleep(time.Minute)
		expect("it is forgotten", "Not decided 0/s Counts", false)
		text := send(h, "GET", "/rules", "").Body.String()
		if want := `"at":"1999-12-31T21:00:00Z"`; !strings.Contains(text, want) {
			t.Errorf("got %s, want %s", text, want)
		}
	})
}
