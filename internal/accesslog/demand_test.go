package accesslog

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// TestDemand compares a demand with counts of every period of every key.
func TestDemand(t *testing.T) {
	for seed := range uint64(3) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		d := newDemand(algorithms.FixedWindow(1, time.Minute), maxSampled)
		periods, peaks := map[string]int64{}, map[string]int64{}
		at, units := time.Unix(1_800_000_000, 0), int64(0)
		for range 20_000 {
			at = at.Add(time.Duration(rnd.IntN(50)) * time.Millisecond)
			key := fmt.Sprint(int(math.Exp(rnd.Float64() * 6)))
			n := rnd.Int64N(3)
			d.add(key, at, n)
			units += n
			p := fmt.Sprint(key, " ", at.Unix()/60)
			periods[p] += n
			if peak := max(peaks[key], periods[p]); peak > 0 {
				peaks[key] = peak
			}
		}
		d.finish()
		s := d
		var sorted []int64
		for _, peak := range peaks {
			sorted = append(sorted, peak)
		}
		slices.Sort(sorted)
		if s.all() != int64(len(sorted)) || s.share() != 1 || s.peak(1000) != sorted[len(sorted)-1] || peaks[s.top] != s.peak(1000) {
			t.Errorf("seed %d: got %d keys, the most %d of %q; want %d, %d", seed, s.all(), s.peak(1000), s.top, len(sorted), sorted[len(sorted)-1])
		}
		for _, share := range []int{500, 900, 990} {
			within := 0
			for _, peak := range sorted {
				if peak <= s.peak(share) {
					within++
				}
			}
			if below := slices.Index(sorted, s.peak(share)); within*1000 < share*len(sorted) || below*1000 >= share*len(sorted) {
				t.Errorf("seed %d: %d of %d keys are within %d, want p%d", seed, within, len(sorted), s.peak(share), share/10)
			}
		}
		for _, most := range []int64{0, 1, 5, s.peak(900), s.peak(1000)} {
			refused, keys := int64(0), 0
			for _, n := range periods {
				refused += max(0, n-most)
			}
			for _, peak := range peaks {
				if peak > most {
					keys++
				}
			}
			gotKeys, gotUnits := s.refused(most)
			if gotKeys != float64(keys)/float64(len(sorted)) || math.Abs(gotUnits-float64(refused)/float64(units)) > 1e-9 {
				t.Errorf("seed %d, %d: got %v of the keys, %v of the units; want %d of %d, %d of %d", seed, most, gotKeys, gotUnits, keys, len(sorted), refused, units)
			}
		}
	}
}

// TestDemandSample: of ten times as many keys as a demand keeps, it keeps a fair sample, the same in
// each run, and says how large a share it is.
func TestDemandSample(t *testing.T) {
	const keys = 100_000
	count := func() *demand {
		d := newDemand(algorithms.FixedWindow(1, time.Minute), keys/10)
		for i := range keys {
			for n := range int64(2) { // in two periods
				d.add(fmt.Sprint("10.0.", i/256, ".", i%256), time.Unix(1_800_000_000+60*n, 0), int64(i%100)+1)
			}
			if len(d.keys) > keys/10 {
				t.Fatalf("%d keys", len(d.keys))
			}
		}
		d.finish()
		return d
	}
	s := count()
	if s.share() < 10 || s.share() > 32 || math.Abs(float64(s.all())/keys-1) > 0.1 {
		t.Errorf("got about %d keys, one of %d; want %d", s.all(), s.share(), keys)
	}
	for share, want := range map[int]int64{500: 50, 900: 90, 990: 99} {
		if got := s.peak(share); got < want-3 || got > want+1 {
			t.Errorf("p%d: got %d, want about %d", share/10, got, want)
		}
	}
	if ofKeys, units := s.refused(50); math.Abs(ofKeys-0.5) > 0.03 || math.Abs(units-0.2525) > 0.03 {
		t.Errorf("a limit of 50 refuses %v of the keys, %v of the units; want 0.5, 0.2525", ofKeys, units)
	}
	if again := count(); again.all() != s.all() || again.top != s.top {
		t.Error("another run has another sample")
	}
}

// TestSuggestions: a report says what it makes of an attack, of a limit that cannot be measured, and the
// suggested limits refuse what it says.
func TestSuggestions(t *testing.T) {
	var log strings.Builder
	line := func(second, key int) {
		at := time.Unix(1_800_000_000+int64(second), 0).UTC().Format(layout)
		fmt.Fprintf(&log, "10.0.%d.%d - - [%s] \"GET / HTTP/1.1\" 200 5\n", key/256, key%256, at)
	}
	for second := range 600 {
		for key := range 2 { // 200 clients send one request in 100 s, so one or none in a minute
			line(second, second%100*2+key)
		}
		if second >= 120 && second < 180 { // and one sends ten a second for a minute
			for range 10 {
				line(second, 777)
			}
		}
	}
	rules := []weir.Rule{perIP(algorithms.FixedWindow(1000, time.Minute), algorithms.SlidingLog(5000, 5*time.Minute), algorithms.GCRA(10_000, time.Hour), algorithms.Calendar(70_000, algorithms.Month, nil), algorithms.SlidingLog(25_000, 2*time.Hour)),
		{Name: "hourly", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9000, time.Hour)}}}
	replaying := func(rules []weir.Rule, suggest bool) *Report {
		r := New(Options{Rules: rules, Suggest: suggest, Reads: func(string) []string { return nil }})
		if err := r.Read(strings.NewReader(log.String())); err != nil {
			t.Fatal(err)
		}
		report, err := r.Report()
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	report := replaying(rules, true)
	var out strings.Builder
	report.WriteSuggestions(&out)
	for _, want := range []string{
		"in whole periods of 1m: 201 keys\n", "p50 1, p90 1, p99 1, all 600\n",
		"a limit of 1 refuses 1 of 201 keys (0.5 %), and 33 % of all units\n",
		"a limit of 600 refuses 0 of 201 keys (0.0 %), and 0 % of all units\n",
		`"10.0.3.9" had 600: an attack, a crawler or a proxy?`,
		"in whole periods of 5m: 201 keys\n", "p50 3, p90 3, p99 3, all 600\n",
		"no suggestion for 10,000 in 1h0m0s by gcra, which has a longer period than the log\n",
		"no suggestion for 70,000 in 720h0m0s by calendar, which is of calendar periods\n",
		"Limits that 99 % of the keys never exceeded, as config of the rules (those without a suggestion are unchanged):\n",
		"config: [{limit: 1, period: 1m, algorithm: fixed-window}, {limit: 3, period: 5m, algorithm: sliding-log}, {limit: 10000, period: 1h, algorithm: gcra}, {limit: 70000, period: month}]\n",
		"{limit: 25000, period: 2h, algorithm: sliding-log} is left out: another limit of the rule refuses at least as much\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the suggestions lack %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), `name: "hourly"`) {
		t.Errorf("a rule without a suggestion is among the suggestions:\n%s", &out)
	}
	suggested := []weir.Rule{perIP(algorithms.FixedWindow(1, time.Minute))}
	if got := replaying(suggested, false); got.Refused != 599 {
		t.Errorf("the suggested limit refuses %d, want 599 of 600 requests of one client", got.Refused)
	}
}

// TestSuggestedNames: YAML reads the names of the suggestion as the names of the rules.
func TestSuggestedNames(t *testing.T) {
	names := []string{"client", "per-ip_2", "[a #b", "a: b", "12", "null", `a"b`, `a\tb`}
	var rules []weir.Rule
	for _, name := range names {
		rule := perIP(algorithms.FixedWindow(1000, time.Second))
		rule.Name = name
		rules = append(rules, rule)
	}
	r := New(Options{Rules: rules, Suggest: true, Reads: func(string) []string { return nil }})
	var log strings.Builder
	for second := range 10 {
		fmt.Fprintf(&log, "10.0.0.1 - - [%s] \"GET / HTTP/1.1\" 200 5\n", time.Unix(1_800_000_000+int64(second), 0).UTC().Format(layout))
	}
	if err := r.Read(strings.NewReader(log.String())); err != nil {
		t.Fatal(err)
	}
	report, err := r.Report()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	report.WriteSuggestions(&out)
	_, list, _ := strings.Cut(out.String(), "\nlimits:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var read []struct {
		Name   string
		Config []struct{ Period string }
	}
	if err := yaml.Unmarshal([]byte(list), &read); err != nil {
		t.Fatalf("%v:\n%s", err, list)
	}
	var got []string
	for _, rule := range read {
		got = append(got, rule.Name)
	}
	if !slices.Equal(got, names) {
		t.Errorf("got the names %q, want %q", got, names)
	}
}

// TestSuggestedDigits: a suggestion has two digits, and is not below what 99 % of the keys had.
func TestSuggestedDigits(t *testing.T) {
	for peak, want := range map[int64]int64{1: 1, 99: 99, 100: 100, 101: 110, 994: 1000, 12_345: 13_000} {
		if got := (&demand{peaks: []int64{peak}}).suggested(); got != want {
			t.Errorf("%d: got %d, want %d", peak, got, want)
		}
	}
}

func BenchmarkDemand(b *testing.B) {
	d := newDemand(algorithms.FixedWindow(1, time.Minute), maxSampled)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		d.add("192.0.2."+fmt.Sprint(i*7919%10_000_000), time.Unix(1_800_000_000+int64(i/10_000), 0), 1)
	}
}
