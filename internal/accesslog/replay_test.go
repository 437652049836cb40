package accesslog

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// perIP is a rule of one limit for each address.
func perIP(limits ...weir.Limit) weir.Rule {
	return weir.Rule{Name: "client", Key: weir.ByIP(), Limits: limits}
}

// replay replays a log through rules that all read the address.
func replay(t *testing.T, log string, rules ...weir.Rule) *Report {
	t.Helper()
	r := New(Options{Rules: rules, Reads: func(string) []string { return []string{"ip"} }})
	if err := r.Read(strings.NewReader(log)); err != nil {
		t.Fatal(err)
	}
	report, err := r.Report()
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestByHand replays a log that was counted by hand, under 3 requests in a minute of the clock for
// each address, and 6 for all.
func TestByHand(t *testing.T) {
	const log = `192.0.2.1 - - [25/Nov/2026:10:00:00 +0100] "GET / HTTP/1.1" 200 5
192.0.2.1 - - [25/Nov/2026:10:00:10 +0100] "GET / HTTP/1.1" 200 5
192.0.2.2 - - [25/Nov/2026:10:00:15 +0100] "GET / HTTP/1.1" 200 5
192.0.2.1 - - [25/Nov/2026:09:00:20 +0000] "GET / HTTP/1.1" 200 5
192.0.2.1 - - [25/Nov/2026:10:00:30 +0100] "GET / HTTP/1.1" 200 5
192.0.2.1 - - [25/Nov/2026:10:00:59 +0100] "GET / HTTP/1.1" 200 5
192.0.2.1 - - [25/Nov/2026:10:01:00 +0100] "GET / HTTP/1.1" 200 5
192.0.2.2 - - [25/Nov/2026:10:01:01 +0100] "GET / HTTP/1.1" 200 5
192.0.2.3 - - [25/Nov/2026:10:01:02 +0100] "GET / HTTP/1.1" 200 5
192.0.2.4 - - [25/Nov/2026:10:01:03 +0100] "GET / HTTP/1.1" 200 5
192.0.2.5 - - [25/Nov/2026:10:01:04 +0100] "GET / HTTP/1.1" 200 5
192.0.2.6 - - [25/Nov/2026:10:01:05 +0100] "GET / HTTP/1.1" 200 5
192.0.2.7 - - [25/Nov/2026:10:01:06 +0100] "GET / HTTP/1.1" 200 5
`
	// In the first minute .1 is refused twice (its 4th and 5th), and all have 4 of 6. In the second
	// minute all 7 requests come from other addresses, so the 7th is refused by the limit of all.
	r := replay(t, log, perIP(algorithms.FixedWindow(3, time.Minute)), weir.Rule{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(6, time.Minute)}})
	at := func(s string) time.Time {
		when, err := time.Parse(time.RFC3339, "2026-11-25T"+s+"+01:00")
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	if r.Requests != 13 || r.Refused != 3 || r.Format != Common || !r.From.Equal(at("10:00:00")) || !r.To.Equal(at("10:01:06")) || !r.WholeSeconds {
		t.Errorf("got %+v", r)
	}
	for i, want := range []Rule{
		{Name: "client", Requests: 13, Refused: 2, First: at("10:00:30"), Last: at("10:00:59"), Top: []Key{{"192.0.2.1", 2}}},
		{Name: "all", Requests: 13, Refused: 1, First: at("10:01:06"), Last: at("10:01:06"), Top: []Key{{"", 1}}},
	} {
		got := *r.Rules[i]
		if !got.First.Equal(want.First) || !got.Last.Equal(want.Last) {
			t.Errorf("%s: got refusals from %v to %v, want %v to %v", got.Name, got.First, got.Last, want.First, want.Last)
		}
		got.First, got.Last, got.Limits, got.keys, want.First, want.Last = time.Time{}, time.Time{}, nil, nil, time.Time{}, time.Time{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// TestOracle: random logs, whose lines are out of order by up to slack, are counted as a map of
// windows counts the sorted requests.
func TestOracle(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		type request struct{ at, late, client int }
		var requests []request
		for range 2000 {
			requests = append(requests, request{at: rng.IntN(7200), late: rng.IntN(500), client: rng.IntN(9)})
		}
		slices.SortStableFunc(requests, func(a, b request) int { return a.at - b.at })
		type window struct{ client, minute int }
		spent, refused := map[window]int{}, map[int]int64{}
		for _, r := range requests {
			if w := (window{r.client, r.at / 60}); spent[w] < 2 {
				spent[w]++
			} else {
				refused[r.client]++
			}
		}
		slices.SortStableFunc(requests, func(a, b request) int { return a.at + a.late - b.at - b.late })
		var log strings.Builder
		for i, r := range requests {
			zone := time.FixedZone("", (i%24-12)*3600)
			fmt.Fprintf(&log, "192.0.2.%d - - [%s] \"GET / HTTP/1.1\" 200 5\n", r.client, time.Unix(1_800_000_000+int64(r.at), 0).In(zone).Format(layout))
		}
		got := replay(t, log.String(), perIP(algorithms.FixedWindow(2, time.Minute)))
		if got.Late != 0 || got.Unordered == 0 || got.Requests != 2000 {
			t.Fatalf("seed %d: got %d requests, %d out of order, %d too late", seed, got.Requests, got.Unordered, got.Late)
		}
		for _, k := range got.Rules[0].keys.n {
			got.Refused -= k
		}
		for client, n := range refused {
			if is := got.Rules[0].keys.n[fmt.Sprintf("192.0.2.%d", client)]; is != n {
				t.Errorf("seed %d: got %d refusals of client %d, want %d", seed, is, client, n)
			}
		}
		if got.Refused != 0 {
			t.Errorf("seed %d: %d refusals of other clients", seed, got.Refused)
		}
	}
}

// TestTold: what a log has that was not replayed, and what a rule needs that the log does not
// have, is told by name and number.
func TestTold(t *testing.T) {
	day := func(h, m, s int) string {
		return fmt.Sprintf("192.0.2.1 - - [25/Nov/2026:%02d:%02d:%02d +0000] \"GET / HTTP/1.1\" 200 5\n", h, m, s)
	}
	log := day(10, 0, 0) + "rubbish\n\n" + day(10, 30, 0) + day(10, 20, 30) + day(10, 41, 0) + day(10, 5, 0) + day(10, 40, 0) +
		strings.Repeat("x", 2*maxLine) + "\r\n" + "192.0.2.1 - - [25/Nov/2026:10:40:00 +0000] \"-\" 408 0\r\n"
	r := New(Options{
		Rules: []weir.Rule{perIP(algorithms.GCRA(1, time.Second)),
			{Name: "tenant", Key: weir.ByHeader("X-Tenant"), Limits: []weir.Limit{algorithms.GCRA(1, time.Second)}},
			{Name: "upload", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Second)}},
			{Name: "used", Key: weir.ByIP(), Settle: weir.ChargeUsed, Limits: []weir.Limit{algorithms.GCRA(1, time.Second)}},
			{Name: "flights", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.InFlight(3, time.Minute)}}},
		Reads: func(rule string) []string {
			return map[string][]string{"tenant": {"method", "header:X-Tenant"}, "upload": {"ip", "content-length"}}[rule]
		},
	})
	if err := r.Read(strings.NewReader(log)); err != nil {
		t.Fatal(err)
	}
	report, err := r.Report()
	if err == nil || err.Error() != "22.2 % of the lines could not be read, so the report says little" {
		t.Errorf("got error %v", err)
	}
	var out strings.Builder
	report.Write(&out, "a.log")
	for _, want := range []string{
		"a.log: Common Log Format, 5 requests from 2026-11-25 10:00:00 +0000 to 2026-11-25 10:41:00 +0000\n",
		"2 lines could not be read; the first is line 2: want a line such as",
		"1 line without an HTTP request\n",
		"2 lines with a time before that of an earlier line: put in order\n",
		"1 line up to 36m0s behind earlier lines: not replayed; the first is line 7.",
		"rule tenant uses header X-Tenant, which the log does not have: not replayed\n",
		"rule upload uses content-length, which the log does not have: not replayed\n",
		"rule used charges what a handler reports, which the log does not have: not replayed\n",
		"rule flights limits requests in flight, and the log does not say how long each request was: not replayed\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &out)
		}
	}
}

// TestNothing: a log from which nothing can be replayed is an error.
func TestNothing(t *testing.T) {
	const line = `192.0.2.1 - - [25/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5` + "\n"
	for log, want := range map[string]string{"": "no request", "rubbish\n\n": "no request", line: "no rule can be replayed"} {
		r := New(Options{Rules: []weir.Rule{perIP(algorithms.GCRA(1, time.Second))}, Reads: func(string) []string { return []string{"cookie:id"} }})
		r.Read(strings.NewReader(log))
		if _, err := r.Report(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", log, err, want)
		}
	}
}

// TestCompressed: a log that is compressed by gzip, in one or several parts, is read like a plain
// one. If its end is missing, Read returns an error, and the part before counts.
func TestCompressed(t *testing.T) {
	var z bytes.Buffer
	for range 2 {
		w := gzip.NewWriter(&z)
		w.Write([]byte(strings.Repeat(`192.0.2.1 - - [25/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5`+"\n", 5)))
		w.Close()
	}
	for cut, want := range map[int]int64{0: 10, 9: 10} {
		r := New(Options{Rules: []weir.Rule{perIP(algorithms.GCRA(1, time.Second))}, Reads: func(string) []string { return nil }})
		err := r.Read(bytes.NewReader(z.Bytes()[:z.Len()-cut]))
		report, _ := r.Report()
		if (err != nil) != (cut > 0) || report.Requests != want {
			t.Errorf("without the last %d bytes: got %d requests and %v, want %d", cut, report.Requests, err, want)
		}
	}
}

// TestShadowAndLists: a rule in shadow says what it would refuse, and allow and deny lists apply.
func TestShadowAndLists(t *testing.T) {
	line := func(client int) string {
		return fmt.Sprintf("192.0.2.%d - - [25/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n", client)
	}
	log := strings.Repeat(line(1)+line(2)+line(3), 4)
	denied := perIP(algorithms.FixedWindow(3, time.Minute))
	denied.ForKey = func(key string) weir.Policy {
		return map[string]weir.Policy{"192.0.2.1": weir.Allowed(), "192.0.2.3": weir.Denied()}[key]
	}
	denied.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Minute}
	shadow := weir.Rule{Name: "shadow", Key: weir.ByIP(), Enforce: weir.Percent(0), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Minute)}}
	r := replay(t, log, denied, shadow)
	if got := fmt.Sprint(r.Requests, r.Refused, r.Rules[0].Requests, r.Rules[0].Refused, r.Rules[1].Requests, r.Rules[1].Refused); got != "12 5 8 5 7 5" {
		t.Errorf("got %s, want 12 requests, 5 refused: 1 of .2 by its limit and 4 of .3; the rule in shadow is asked for 4 and 3, and would refuse 3 and 2", got)
	}
	var out strings.Builder
	r.Write(&out, "-")
	for _, want := range []string{"would refuse (shadow) 5", "its bans are not replayed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &out)
		}
	}
}

// TestBounded: the memory for counts is bounded, expired counts are forgotten first, and counts
// that were forgotten too early are counted.
func TestBounded(t *testing.T) {
	for _, tt := range []struct {
		limit quota.Limit
		every time.Duration // between two keys
		early bool
	}{
		{algorithms.SlidingLog(5, time.Second), time.Second, false},
		{algorithms.FixedWindow(5, 24*time.Hour), time.Millisecond, true},
	} {
		c := newCounts(5000)
		c.now = 1_800_000_000_000_000
		for i := range 50_000 {
			q := quota.Transaction{Charges: []quota.Charge{{Rule: "a", Key: fmt.Sprint(i), Limit: tt.limit, Cost: 1}}}
			if err := c.Take(context.Background(), &q); err != nil || !q.Allowed() {
				t.Fatal(err, q)
			}
			if c.size > c.most {
				t.Fatalf("%s: %d counts, want at most %d", tt.limit.Algorithm.Name(), c.size, c.most)
			}
			c.now += tt.every.Microseconds()
		}
		size := 0
		for _, s := range c.states {
			size += s.weight()
		}
		if size != c.size {
			t.Errorf("%s: the size is %d, want %d", tt.limit.Algorithm.Name(), c.size, size)
		}
		if (c.forgotten > 0) != tt.early {
			t.Errorf("%s: %d counts were forgotten too early", tt.limit.Algorithm.Name(), c.forgotten)
		}
	}
}

// TestTally: the keys that were refused most are known among more keys than a tally keeps.
func TestTally(t *testing.T) {
	ta := newTally(maxTallied)
	for i := range 3 * maxTallied {
		ta.add(fmt.Sprint("key ", i))
		if i%100 == 0 {
			ta.add("most")
		}
		if len(ta.n) > maxTallied {
			t.Fatalf("%d keys", len(ta.n))
		}
	}
	keys, unsure := ta.top()
	if want := (Key{"most", 3 * maxTallied / 100}); keys[0] != want || unsure == 0 {
		t.Errorf("got %v, too low by up to %d; want %v", keys[0], unsure, want)
	}
}

func BenchmarkReplay(b *testing.B) {
	r := New(Options{Rules: []weir.Rule{perIP(algorithms.GCRA(100, time.Minute))}, Reads: func(string) []string { return nil }})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := time.Unix(1_800_000_000+int64(i/1000), 0).UTC().Format(layout)
		r.Add(fmt.Sprintf("192.0.%d.%d - - [%s] \"GET /index.html HTTP/1.1\" 200 512 \"-\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\"", i%7, i%200, at))
	}
}

// TestPeer: most requests of one address are a note, unless it is a trusted proxy, and a bounded number
// of addresses is counted.
func TestPeer(t *testing.T) {
	for share, want := range map[int]bool{30: false, 45: false, 60: true, 100: true} {
		for _, trusted := range []bool{false, true} {
			o := Options{Rules: []weir.Rule{perIP(algorithms.GCRA(1, time.Second))}, Reads: func(string) []string { return nil }}
			if trusted {
				o.Trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}
			}
			r := New(o)
			for i := range 10_000 {
				from := fmt.Sprintf("192.0.%d.%d", i>>8, i&255)
				if i%100 < share {
					from = "10.0.0.1"
				}
				if err := r.Add(from + ` - - [25/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5`); err != nil {
					t.Fatal(err)
				}
			}
			report, err := r.Report()
			if err != nil {
				t.Fatal(err)
			}
			if told := report.FromPeer > 0; told != (want && !trusted) || report.FromPeer > int64(100*share) || len(report.peers.n) > maxPeers {
				t.Errorf("%d %% of one address, trusted %v: got %d of %v, %d addresses", share, trusted, report.FromPeer, report.Peer, len(report.peers.n))
			}
		}
	}
}
