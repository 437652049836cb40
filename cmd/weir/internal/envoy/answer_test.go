package envoy

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed83679106/weir/memstore"
)

// TestQuotaMode: a call is over its limit if a descriptor without quota_mode is, or if all its
// descriptors with quota_mode are. With Options.Quota all have it. The cases are from the tests of
// Envoy's service.
func TestQuotaMode(t *testing.T) {
	text := `
domain: d
descriptors:
- {key: quota1, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: quota2, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: regular, rate_limit: {unit: day, requests_per_unit: 3}}
`
	c, global := dial(t, text, memstore.New(memstore.Options{}), Options{}), dial(t, text, memstore.New(memstore.Options{}), Options{Quota: true})
	for _, tt := range []struct {
		c           *client
		descriptors []string
		want        string
	}{
		{c, []string{"quota1=a", "quota2=a"}, "OK | OK 0/1 DAY | OK 1/2 DAY"},
		{c, []string{"quota1=a", "quota2=a"}, "OK | OVER_LIMIT 0/1 DAY | OK 0/2 DAY"}, // only one of two is over
		{c, []string{"quota1=a", "quota2=a"}, "OVER_LIMIT | OVER_LIMIT 0/1 DAY | OVER_LIMIT 0/2 DAY"},
		{c, []string{"quota1=a"}, "OVER_LIMIT | OVER_LIMIT 0/1 DAY"},
		{c, []string{"nothing=a", "quota1=a"}, "OVER_LIMIT | OK | OVER_LIMIT 0/1 DAY"}, // the only one with quota_mode is over
		{c, []string{"regular=a", "quota1=a", "quota2=b"}, "OK | OK 2/3 DAY | OVER_LIMIT 0/1 DAY | OK 1/2 DAY"},
		{c, []string{"regular=a", "quota1=a"}, "OVER_LIMIT | OK 1/3 DAY | OVER_LIMIT 0/1 DAY"},
		{c, []string{"regular=a"}, "OK | OK 0/3 DAY"},
		{c, []string{"regular=a", "quota2=c"}, "OVER_LIMIT | OVER_LIMIT 0/3 DAY | OK 1/2 DAY"}, // regular has no quota_mode
		{global, []string{"regular=a", "quota1=a"}, "OK | OK 2/3 DAY | OK 0/1 DAY"},
		{global, []string{"regular=a", "quota1=a"}, "OK | OK 1/3 DAY | OVER_LIMIT 0/1 DAY"},
		{global, []string{"nothing=a", "quota1=a"}, "OK | OK | OVER_LIMIT 0/1 DAY"},
		{global, []string{"quota1=a"}, "OVER_LIMIT | OVER_LIMIT 0/1 DAY"},
	} {
		if got := tt.c.call(t, "d", 1, descriptors(tt.descriptors)...); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.descriptors, got, tt.want)
		}
	}
}

// TestMetadata: with the option Metadata, Envoy gets the descriptors of the call and, merged, the
// metadata of the descriptors of the file that are within their limits. What calls get does not change
// what the file says.
func TestMetadata(t *testing.T) {
	text := `
domain: d
descriptors:
- {key: a, metadata: {team: one, tier: {}, list: [1, x]}, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: b, metadata: {team: two, tier: {name: gold}}, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: c, metadata: {tier: {name: iron, since: 2020}, list: none}, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: d, rate_limit: {unit: day, requests_per_unit: 9}}
`
	c := dial(t, text, memstore.New(memstore.Options{}), Options{Metadata: true})
	for i := range 20 { // fields are merged in random order
		for _, tt := range []struct{ keys, want string }{
			{"a", "map[list:[1 x] team:one tier:map[]]"},
			{"a b c", "map[list:[1 x] team:one tier:map[name:gold since:2020]]"},
			{"a c", "map[list:none tier:map[name:iron since:2020]]"}, // a is over its limit
			{"d nothing", "<nil>"},
		} {
			r := &ratelimit.RateLimitRequest{Domain: "d", HitsAddend: 1}
			for key := range strings.FieldsSeq(tt.keys) {
				r.Descriptors = append(r.Descriptors, descriptor(fmt.Sprintf("%s=%d", key, i)))
			}
			r.Descriptors[0].HitsAddend = wrapperspb.UInt64(1)
			resp, err := c.ShouldRateLimit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			fields := resp.DynamicMetadata.AsMap()
			if got := fmt.Sprint(fields["metadata"]); got != tt.want {
				t.Errorf("%s: got %s, want %s", tt.keys, got, tt.want)
			}
			want := fmt.Sprintf("map[entries:[%c=%d] hitsAddend:1]", tt.keys[0], i)
			if got := fmt.Sprint(fields["descriptors"].([]any)[0]); fields["domain"] != "d" || fields["hitsAddend"] != 1.0 || got != want {
				t.Errorf("%s: got %v, want the descriptor %s", tt.keys, fields, want)
			}
		}
	}
}

// TestHeaders: with the option Headers, Envoy is told to add header fields to the response. These
// fields describe the limit with the fewest hits left.
func TestHeaders(t *testing.T) {
	c := dial(t, sample(t), memstore.New(memstore.Options{}), Options{Headers: true})
	for _, tt := range []struct {
		descriptors []string
		want        string
	}{
		{[]string{"key5=value5", "key4=a"}, "RateLimit-Limit=1 RateLimit-Remaining=0"},
		{[]string{"key5=value5"}, "RateLimit-Limit=15 RateLimit-Remaining=13"},
		{[]string{"key5=value5", "key4=a"}, "RateLimit-Limit=1 RateLimit-Remaining=0"},
		{[]string{"nothing=a"}, ""},
	} {
		resp, err := c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: descriptors(tt.descriptors)})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range resp.ResponseHeadersToAdd {
			if h.Key == "Retry-After" {
				continue // TestRetryAfter
			}
			if h.Key != "RateLimit-Reset" {
				got = append(got, h.Key+"="+h.Value)
			} else if d, err := time.ParseDuration(h.Value + "s"); err != nil || d <= 0 || d > 24*time.Hour {
				t.Errorf("%q: got RateLimit-Reset: %s", tt.descriptors, h.Value)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q: got %s, want %s", tt.descriptors, got, tt.want)
		}
	}
}

// TestHeaderNames: Options.HeaderNames are the names of the header fields.
func TestHeaderNames(t *testing.T) {
	c := dial(t, sample(t), memstore.New(memstore.Options{}), Options{Headers: true, HeaderNames: [3]string{"X-Limit", "X-Left", "X-Reset"}})
	resp, err := c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "test-domain", Descriptors: descriptors([]string{"key4=a"})})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, h := range resp.ResponseHeadersToAdd {
		got += h.Key + " "
	}
	if got != "X-Limit X-Left X-Reset " {
		t.Errorf("got %s", got)
	}
}

// TestRetryAfter: a refused call has the field Retry-After, the seconds until the windows that
// refuse it have ended. A call that passes, that never passes, or that is only in shadow has none.
func TestRetryAfter(t *testing.T) {
	const limits = `
domain: d
descriptors:
- {key: hour, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: quotas, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: fresh, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: large, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
`
	c := dial(t, limits, memstore.New(memstore.Options{}), Options{})
	end := func(window time.Duration) int64 { // the seconds until a window ends
		if window == 0 {
			return 0
		}
		seconds := int64(window / time.Second)
		return seconds - time.Now().Unix()%seconds
	}
	for _, tt := range []struct {
		name        string
		descriptors []string
		hits        uint32
		window      time.Duration // in which the second call may try again; 0 means no field
	}{
		{"an hour", []string{"hour=a"}, 1, time.Hour},
		{"a day", []string{"hour=b", "day=b"}, 1, 24 * time.Hour},
		{"never", []string{"hour=c", "none=c"}, 1, 0},
		{"too many hits", []string{"hour=d"}, 2, 0},
		{"in shadow", []string{"shadow=e"}, 1, 0},
		{"without a limit", []string{"other=f"}, 1, 0},
		{"quota mode", []string{"quota=g", "quotas=g"}, 1, time.Hour},
		{"quota mode and a day", []string{"quota=h", "day=h"}, 1, 24 * time.Hour},
		{"quota mode and an hour", []string{"quotas=i", "hour=i"}, 1, 24 * time.Hour},
		{"quota mode, not all", []string{"quota=j", "fresh=j"}, 1, 0},
		{"quota mode, too many hits", []string{"quota=k", "large=k"}, 5, time.Hour},
		{"quota mode, too many hits for all", []string{"quota=l"}, 2, 0},
	} {
		inOne(time.Hour, 30*time.Second)
		first := end(tt.window)
		var last *ratelimit.RateLimitResponse
		for range 2 {
			var err error
			last, err = c.ShouldRateLimit(t.Context(), &ratelimit.RateLimitRequest{Domain: "d", HitsAddend: tt.hits, Descriptors: descriptors(tt.descriptors)})
			if err != nil {
				t.Fatal(err)
			}
		}
		got := int64(0)
		for _, h := range last.ResponseHeadersToAdd {
			if h.Key == "Retry-After" {
				got, _ = strconv.ParseInt(h.Value, 10, 64)
			}
		}
		least, most := end(tt.window), first
		if got < least || got > most {
			t.Errorf("%s: got Retry-After %d, want %d to %d", tt.name, got, least, most)
		}
	}
}

// TestReplaces: if a limit of a call replaces another limit of the call, the replaced limit does
// not apply and is not counted. The example is from the manual of Envoy's service.
func TestReplaces(t *testing.T) {
	c := dial(t, `
domain: d
descriptors:
- key: key_1
  value: value_1
  descriptors: [{key: user, value: x, rate_limit: {name: specific, requests_per_unit: 5, unit: day}}]
- key: key_2
  value: value_2
  descriptors: [{key: user, value: x, rate_limit: {replaces: [{name: specific}], requests_per_unit: 10, unit: day}}]
- key: free
  rate_limit: {unlimited: true, replaces: [{name: specific}]}
`, memstore.New(memstore.Options{}), Options{})
	first, second, free := "key_1=value_1 user=x", "key_2=value_2 user=x", "free=a"
	for _, tt := range []struct {
		descriptors []string
		want        string
	}{
		{[]string{first}, "OK | OK 4/5 DAY specific"},
		{[]string{second}, "OK | OK 9/10 DAY"},
		{[]string{first, second}, "OK | OK | OK 8/10 DAY"},
		{[]string{second, first}, "OK | OK 7/10 DAY | OK"},
		{[]string{first}, "OK | OK 3/5 DAY specific"},
		{[]string{first, free}, "OK | OK | OK unlimited"},
		{[]string{first}, "OK | OK 2/5 DAY specific"},
	} {
		if got := c.call(t, "d", 1, descriptors(tt.descriptors)...); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.descriptors, got, tt.want)
		}
	}
}
