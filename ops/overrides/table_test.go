package overrides_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
)

// limits returns a list with one limit, whose quota is n.
func limits(n int64) []quota.Limit { return []quota.Limit{{Quota: n}} }

// text describes a policy.
func text(p weir.Policy) string {
	switch {
	case p.Is(weir.Policy{}):
		return "-"
	case p.Is(weir.Unlimited()):
		return "unlimited"
	case p.Is(weir.Denied()):
		return "denied"
	}
	return fmt.Sprint(p.Limits()[0].Quota)
}

func TestTable(t *testing.T) {
	long := strings.Repeat("k", 1<<20)
	table, err := overrides.New(
		overrides.Entry{Key: "alice", Limits: limits(1)},
		overrides.Entry{Prefix: "tenant-", Limits: limits(2)},
		overrides.Entry{Prefix: "tenant-a/", Limits: limits(3)},
		overrides.Entry{Key: "tenant-a/bob", Unlimited: true},
		overrides.Entry{Prefix: "tenant-b/", Denied: true},
		overrides.Entry{Key: "a\x00\n\xff", Limits: limits(4)},
		overrides.Entry{Key: long, Limits: limits(5)},
		overrides.Entry{Key: storedkey.Of(long + "2"), Limits: limits(6)},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ key, want string }{
		{"alice", "1"},
		{"alice2", "-"},
		{"alic", "-"},
		{"", "-"},
		{"tenant", "-"},
		{"tenant-", "2"},
		{"tenant-a", "2"},
		{"tenant-a/", "3"},
		{"tenant-a/bo", "3"},
		{"tenant-a/bob", "unlimited"},
		{"tenant-a/bobby", "3"},
		{"tenant-a0", "2"}, // follows tenant-a/ in byte order
		{"tenant-b/x", "denied"},
		{"tenant-c/x", "2"},
		{"tenant.", "-"},
		{"a\x00\n\xff", "4"},
		{"a\x00\n", "-"},
		{long, "5"},
		{long + "2", "6"},
		{long + "3", "-"},
		{"tenant-a/" + long, "3"},
	} {
		if got := text(table.ForKey(tt.key)); got != tt.want {
			t.Errorf("%.20q: got %s, want %s", tt.key, got, tt.want)
		}
	}
}

func TestNewMistakes(t *testing.T) {
	type entries = []overrides.Entry
	for _, tt := range []struct {
		name    string
		entries entries
		want    string
	}{
		{"no key", entries{{Limits: limits(1)}}, "has none of Key, Prefix, All and Network"},
		{"key and prefix", entries{{Key: "a", Prefix: "b", Denied: true}}, "more than one of Key, Prefix, All and Network"},
		{"a network", entries{{Network: netip.MustParsePrefix("10.0.0.0/8"), Denied: true}}, "only a Live table may have networks"},
		{"twice all", entries{{All: true, Denied: true}, {All: true, Unlimited: true}}, "two entries for all keys"},
		{"nothing", entries{{Key: "a"}}, `key "a" has no limits`},
		{"two things", entries{{Key: "a", Limits: limits(1), Denied: true}}, "more than one of Limits, Unlimited and Denied; want one"},
		{"zero", entries{{Key: "a", Limits: limits(0)}}, "or Denied to refuse the key"},
		{"twice", entries{{Key: "a", Denied: true}, {Key: "a", Unlimited: true}}, `two entries for key "a"`},
		{"twice the beginning", entries{{Prefix: "a", Denied: true}, {Prefix: "b", Denied: true}, {Prefix: "a", Unlimited: true}}, `two entries for prefix "a"`},
		{"twice by digest", entries{{Key: strings.Repeat("k", 200), Denied: true}, {Key: storedkey.Of(strings.Repeat("k", 200)), Denied: true}}, "two entries"},
		{"long beginning", entries{{Prefix: strings.Repeat("k", 129), Denied: true}}, "has 129 bytes; want at most 128"},
		{"many limits", entries{{Key: "a", Limits: make([]quota.Limit, 17)}}, "has 17 limits; want at most 16"},
		{"nested", entries{{Key: "a", Nested: entries{{Key: "b", Denied: true}}}}, "only an entry for the first part of joined keys may have them"},
	} {
		if _, err := overrides.New(tt.entries...); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "overrides: ") {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	deep := overrides.Entry{Key: "a", Nested: entries{{Key: "b", Nested: entries{{Key: "c", Denied: true}}}}}
	if _, err := overrides.NewJoined(deep); err == nil {
		t.Error("nested twice: no error")
	}
}

func TestJoined(t *testing.T) {
	table, err := overrides.NewJoined(
		overrides.Entry{Key: "alice", Limits: limits(1), Nested: []overrides.Entry{{Key: "POST", Limits: limits(2)}, {Prefix: "P", Denied: true}}},
		overrides.Entry{Prefix: "al", Limits: limits(3)},
		overrides.Entry{Key: "alf", Nested: []overrides.Entry{{All: true, Unlimited: true}}},
		overrides.Entry{Key: "bob", Nested: []overrides.Entry{{Key: "GET", Limits: limits(4)}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ first, second, want string }{
		{"alice", "POST", "2"},
		{"alice", "PUT", "denied"},
		{"alice", "GET", "1"},
		{"albert", "POST", "3"},
		{"alf", "", "unlimited"},
		{"bob", "GET", "4"},
		{"bob", "POST", "-"},
		{"carol", "GET", "-"},
		{"bob,3:GET", "PUT", "-"}, // a part that looks like two parts
	} {
		part := func(s string) weir.KeyFunc { return func(*http.Request) (string, bool) { return s, true } }
		key, _ := weir.Join(part(tt.first), part(tt.second))(httptest.NewRequest("GET", "/", nil))
		if got := text(table.ForKey(key)); got != tt.want {
			t.Errorf("%s: got %s, want %s", key, got, tt.want)
		}
	}
	for _, key := range []string{"", "alice", "5:alice", "5:alice;", "9:alice,", "-1:a,", "99999999999999999999:a,", ":,"} {
		if got := text(table.ForKey(key)); got != "-" {
			t.Errorf("%q, which is no joined key: got %s", key, got)
		}
	}
}

// TestTableModel compares random tables with a search through all of their entries.
func TestTableModel(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	word := func() string {
		b := make([]byte, r.IntN(6))
		for i := range b {
			b[i] = "ab*\xff"[r.IntN(4)]
		}
		return string(b)
	}
	for range 2000 {
		entries := map[string]int64{}
		var list []overrides.Entry
		for i := range r.Int64N(12) {
			text, e := word(), overrides.Entry{Limits: limits(i + 1)}
			id := "=" + text
			if r.IntN(2) == 0 {
				id, e.Prefix, e.All = "*"+text, text, text == ""
			} else {
				e.Key = text
			}
			if _, ok := entries[id]; id != "=" && !ok {
				entries[id] = i + 1
				list = append(list, e)
			}
		}
		table, err := overrides.New(list...)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			key := word()
			if got, want := text(table.ForKey(key)), search(entries, key); got != want {
				t.Fatalf("seed %d: %q in %v: got %s, want %s", seed, key, entries, got, want)
			}
		}
	}
}

// search returns the quota of the entry for a key, or "-", by a search through all entries.
func search(entries map[string]int64, key string) string {
	want, longest := "-", -1
	for k, n := range entries {
		start, isStart := strings.CutPrefix(k, "*")
		if k == "="+key {
			return fmt.Sprint(n)
		}
		if isStart && strings.HasPrefix(key, start) && len(start) > longest {
			want, longest = fmt.Sprint(n), len(start)
		}
	}
	return want
}

// TestForKeyAllocates: Table.ForKey does not allocate.
func TestForKeyAllocates(t *testing.T) {
	for _, b := range tables {
		table := b.table(t)
		for _, key := range []string{"192.0.2.1", "customer-77", "9:192.0.2.1,3:GET,"} {
			if n := testing.AllocsPerRun(100, func() { table.ForKey(key) }); n > 0 {
				t.Errorf("%s: %s: %v allocations", b.name, key, n)
			}
		}
	}
}

type tableCase struct {
	name  string
	entry func(i int) overrides.Entry
}

// The tables of the benchmarks have 10,000 entries each.
var tables = []tableCase{
	{"keys", func(i int) overrides.Entry { return overrides.Entry{Key: fmt.Sprintf("customer-%d", i)} }},
	{"beginnings", func(i int) overrides.Entry { return overrides.Entry{Prefix: fmt.Sprintf("customer-%d/", i)} }},
	{"addresses", func(i int) overrides.Entry { return overrides.Entry{Key: fmt.Sprintf("192.0.%d.%d", i/250, 2+i%250)} }},
	{"both", func(i int) overrides.Entry {
		if text := fmt.Sprintf("192.0.%d.%d", i/250, 2+i%250); i%2 == 0 {
			return overrides.Entry{Key: text}
		} else {
			return overrides.Entry{Prefix: text + "/"}
		}
	}},
}

func (b *tableCase) table(tb testing.TB) *overrides.Table {
	entries := make([]overrides.Entry, 10_000)
	for i := range entries {
		entries[i] = b.entry(i)
		entries[i].Limits = limits(int64(1 + i%5))
	}
	table, err := overrides.New(entries...)
	if err != nil {
		tb.Fatal(err)
	}
	return table
}

// BenchmarkHandler compares a rule without overrides with a rule that has 10,000
// overrides, for a client whose key has no override: 0.46 to 0.62 µs a request, without overrides 0.32
// to 0.34 µs (six runs on 23 November 2026, 2 cores of a Xeon).
func BenchmarkHandler(b *testing.B) {
	run := func(name string, f func(string) weir.Policy) {
		b.Run(name, func(b *testing.B) {
			l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
				Name: "api", Key: weir.ByIP(), Limits: []quota.Limit{algorithms.GCRA(1<<30, time.Second)}, ForKey: f,
			}}})
			if err != nil {
				b.Fatal(err)
			}
			h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "192.0.2.1:4"
			w := &nullWriter{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
	run("none", nil)
	for _, bb := range tables {
		run(bb.name, bb.table(b).ForKey)
	}
}

type nullWriter struct{ h http.Header }

func (w *nullWriter) Header() http.Header         { return w.h }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *nullWriter) WriteHeader(int)             {}

func BenchmarkForKey(b *testing.B) {
	for _, bb := range tables {
		b.Run(bb.name, func(b *testing.B) {
			table := bb.table(b)
			for b.Loop() {
				table.ForKey("192.0.2.1")
			}
		})
	}
}
