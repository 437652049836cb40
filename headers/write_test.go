package headers_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A writer is a dialect with prepared items: an allowed and a refused limit of requests, and
// one of tokens.
type writer struct {
	*headers.Writer
	items []headers.Item
}

func newWriter(tb testing.TB, d headers.Dialect) writer {
	tb.Helper()
	w, err := headers.NewWriter(d, "requests", "tokens")
	if err != nil {
		tb.Fatal(err)
	}
	item := func(name, unit string, remaining int64, wait time.Duration) headers.Item {
		p := w.Prepare(headers.Policy{Name: name, Resource: "api", Unit: unit, Limit: algorithms.GCRA(100, time.Minute)})
		return headers.Item{Prepared: p, Decision: &quota.Decision{Allowed: wait == 0, Remaining: remaining, RetryAfter: wait, NextAfter: 600 * time.Millisecond, ResetAfter: time.Minute - 1}}
	}
	return writer{w, []headers.Item{item(`a"\`, "", 99, 0), item("b", "requests", 0, 1500*time.Millisecond), item("c", "tokens", 7, 0)}}
}

// all are the dialects, each by itself.
var all = []headers.Dialect{0, headers.XRateLimit, headers.IETF, headers.Draft07, headers.Draft06, headers.GitHub, headers.OpenAI, headers.Anthropic, headers.Twitter, headers.None}

// TestWriteAllocates: once a dialect's integers are known, Write allocates at most the text of each
// field that is no integer, and nothing for the default dialect.
func TestWriteAllocates(t *testing.T) {
	most := map[headers.Dialect]float64{0: 0, headers.XRateLimit: 0, headers.Draft06: 0, headers.GitHub: 0, headers.Twitter: 0, headers.None: 0}
	for _, d := range all {
		want, ok := most[d]
		if !ok {
			want = 6 // of the refusal of three limits; a field takes two: its text, and the list of it
		}
		w := newWriter(t, d)
		r := headers.Response{Header: http.Header{}, At: noon}
		one := testing.AllocsPerRun(1000, func() { w.Write(&r, w.items[:1]) })
		r.Refused, r.RetryAfter = true, 1500*time.Millisecond
		refused := testing.AllocsPerRun(1000, func() { w.Write(&r, w.items) })
		if one > want || refused > want {
			t.Errorf("%#x: got %v allocations of one limit and %v of a refusal, want at most %v", d, one, refused, want)
		}
	}
}

// TestWriteIntegers: a response has its own integers, whatever integers responses had before, and what
// other code appends to one field changes neither another field nor another response.
func TestWriteIntegers(t *testing.T) {
	w := newWriter(t, headers.GitHub)
	write := func(remaining int64, at time.Time) http.Header {
		h, item := http.Header{}, w.items[0]
		item.Decision = &quota.Decision{Allowed: true, Remaining: remaining}
		w.Write(&headers.Response{Header: h, At: at}, []headers.Item{item})
		return h
	}
	var kept []http.Header // with the values that they must have
	var want [][2]int64
	add := func(remaining int64, at time.Time) {
		kept, want = append(kept, write(remaining, at)), append(want, [2]int64{remaining, at.Unix()})
	}
	for _, from := range []int64{0, 1, 9, 99, 1009, 999_999, 1_000_003, math.MaxInt64 - 40} {
		for _, step := range []int64{1, -1, 0, 7, 10, 1280} { // 1280 are remembered
			for i := range int64(25) {
				if n := from + i*step; n >= 0 {
					add(n, noon.Add(time.Duration(n%1000)*time.Second))
				}
			}
		}
	}
	for _, h := range kept {
		for name, values := range h {
			h[name] = append(values, "of another middleware")
		}
	}
	for i, h := range kept {
		for j, name := range []string{"X-Ratelimit-Remaining", "X-Ratelimit-Reset"} {
			if got, want := h[name], []string{strconv.FormatInt(want[i][j], 10), "of another middleware"}; !slices.Equal(got, want) {
				t.Errorf("response %d: %s is %q, want %q", i, name, got, want)
			}
		}
	}
}

// TestWriteLarge: the Integers of structured fields have at most 15 digits, or clients would ignore the
// whole field.
func TestWriteLarge(t *testing.T) {
	for _, d := range []headers.Dialect{headers.IETF, headers.Draft07, headers.Draft06} {
		w, h := newWriter(t, d), http.Header{}
		p := w.Prepare(headers.Policy{Name: "large", Limit: algorithms.FixedWindow(quota.MaxTicks, time.Second)})
		w.Write(&headers.Response{Header: h, At: noon}, []headers.Item{{Prepared: p, Decision: &quota.Decision{Allowed: true, Remaining: quota.MaxTicks}}})
		text := fmt.Sprint(h)
		if n := strings.Count(text, "999999999999999"); n < 2 || regexp.MustCompile(`[0-9]{16}`).MatchString(text) {
			t.Errorf("%#x: got %s, want 999999999999999 in the place of 2^50", d, text)
		}
	}
}

// TestWriteFalls: if an integer falls with each response, as how much of a quota is left, fewer than one
// response in two makes an allocation.
func TestWriteFalls(t *testing.T) {
	w := newWriter(t, 0)
	r, left := headers.Response{Header: http.Header{}, At: noon}, int64(1_000_000)
	got := testing.AllocsPerRun(100, func() {
		for range 100 {
			left--
			w.items[0].Remaining = left
			w.Write(&r, w.items[:1])
		}
	})
	if got > 45 {
		t.Errorf("got %v allocations in 100 responses, want at most 45", got)
	}
}

// TestWriteTogether: the policies of a response are its own, whatever policies responses
// had before.
func TestWriteTogether(t *testing.T) {
	w := newWriter(t, headers.IETF)
	for range 3 {
		for _, c := range []struct {
			items []headers.Item
			want  string
		}{
			{w.items, `"a\"\\";q=100;w=60, "b";q=100;w=60, "c";q=100;qu="tokens";w=60`},
			{w.items[:2], `"a\"\\";q=100;w=60, "b";q=100;w=60`},
			{[]headers.Item{w.items[0], w.items[2]}, `"a\"\\";q=100;w=60, "c";q=100;qu="tokens";w=60`},
			{w.items[:1], `"a\"\\";q=100;w=60`},
		} {
			h := http.Header{}
			w.Write(&headers.Response{Header: h, At: noon}, c.items)
			if got := h.Get("RateLimit-Policy"); got != c.want {
				t.Errorf("%d limits: got %s, want %s", len(c.items), got, c.want)
			}
		}
	}
}

// TestWriteLower: in lower case, a response has the same fields with the same values, whatever the
// dialect, even if another Writer has prepared the limits. A field that is removed is one in lower case.
func TestWriteLower(t *testing.T) {
	other, err := headers.NewWriter(0, "bytes")
	if err != nil {
		t.Fatal(err)
	}
	limit := algorithms.GCRA(100, time.Minute)
	foreign := headers.Item{Prepared: other.Prepare(headers.Policy{Name: "d", Unit: "bytes", Limit: limit}), Decision: &quota.Decision{Allowed: true, Remaining: 5}}
	for _, d := range all {
		w := newWriter(t, d|headers.Exposed)
		unknown := headers.Item{Prepared: w.items[0].Prepared, Decision: &quota.Decision{Allowed: true, Remaining: -1}}
		for _, items := range [][]headers.Item{nil, w.items[:1], w.items, append(w.items, foreign), {unknown}} {
			for _, refused := range []bool{false, true} {
				got, want := http.Header{}, http.Header{}
				for _, r := range []headers.Response{{Header: want}, {Header: got, Lower: true}} {
					r.At, r.RetryAfter = noon, 1500*time.Millisecond
					w.Write(&r, w.items) // of an outer Limiter
					r.Refused = refused
					w.Write(&r, items)
				}
				lower := http.Header{}
				for name, values := range want {
					lower[strings.ToLower(name)] = values
				}
				if !maps.EqualFunc(got, lower, slices.Equal) {
					t.Errorf("%#x, %d limits, refused %v: got %v, want %v", d, len(items), refused, got, lower)
				}
			}
		}
	}
}

func ExampleWriter() {
	w, err := headers.NewWriter(headers.IETF|headers.Exposed, headers.Requests)
	if err != nil {
		fmt.Println(err)
		return
	}
	limit := algorithms.GCRA(10, time.Minute)
	policy := w.Prepare(headers.Policy{Name: "search", Limit: limit})

	store := memstore.New(memstore.Options{})
	t := quota.Transaction{Charges: []quota.Charge{{Rule: "search", Key: "alice", Limit: limit, Cost: 1}}}
	if err := store.Take(context.Background(), &t); err != nil {
		fmt.Println(err)
		return
	}
	h := http.Header{}
	w.Write(&headers.Response{Header: h, At: t.At, Refused: !t.Allowed(), RetryAfter: t.RetryAfter()}, []headers.Item{{Prepared: policy, Decision: &t.Decisions[0]}})
	fmt.Println(h.Get("RateLimit-Policy"))
	fmt.Println(h.Get("RateLimit"))
	fmt.Println("Access-Control-Expose-Headers:", h.Get("Access-Control-Expose-Headers"))
	// Output:
	// "search";q=10;w=60
	// "search";r=9;t=6
	// Access-Control-Expose-Headers: Retry-After, Ratelimit, Ratelimit-Policy
}

// BenchmarkWrite measures each dialect.
func BenchmarkWrite(b *testing.B) {
	for _, d := range all[1:] {
		b.Run(fmt.Sprintf("%#x", d), func(b *testing.B) {
			w := newWriter(b, d)
			r := headers.Response{Header: http.Header{}, At: noon}
			b.ReportAllocs()
			for b.Loop() {
				w.Write(&r, w.items[:1])
			}
		})
	}
}
