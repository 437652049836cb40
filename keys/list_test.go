package keys_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/quota"
)

var served = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func TestList(t *testing.T) {
	for _, tt := range []struct {
		entries, in, out string
	}{
		{"alice bob", "alice bob", "ali alicea ALICE 192.0.2.1"},
		{"tenant-a/*", "tenant-a/ tenant-a/x", "tenant-a tenant-ab tenant-b/x"},
		{"a* b*", "a ab b bc", "c ca"},
		{"192.0.2.7", "192.0.2.7 ::ffff:192.0.2.7", "192.0.2.8 192.0.2.70"},
		{"10.0.0.0/8", "10.0.0.0 10.255.255.255 10.1.0.0/16", "11.0.0.0 9.255.255.255 10.0.0.0/7 ::a00:1"},
		{"10.1.2.3/8", "10.9.9.9", "11.1.2.3"}, // bits after the length are ignored
		{"2001:db8::/32", "2001:db8::1 2001:db8:1::/64 2001:db8::/32", "2001:db9::1 2001:db8::/31"},
		{"2001:db8::/64", "2001:db8::1 2001:DB8:0::1 2001:db8::/64", "2001:db8:0:1::/64"},
		{"2001:db8::1", "2001:db8::1 2001:db8::1/128", "2001:db8::2 2001:db8::2/128 2001:db8::/127 2001:db8::/64"},
		{"2001:db8::/96", "2001:db8::1 2001:db8::1/128 2001:db8::/96", "2001:db8::1:0:0/96 2001:db8::/64"},
		{"::ffff:10.0.0.0/104", "10.0.0.0 10.255.255.255", "11.0.0.0 9.255.255.255"},
		{"::ffff:192.0.2.7", "192.0.2.7", "192.0.2.8"},
		{"1.2.3 1.2.3.4.5 a:b 12:30 v1.2.3.4", "1.2.3 1.2.3.4.5 a:b 12:30 v1.2.3.4", "1.2.3.4"}, // no addresses
		{"0.0.0.0/0", "1.2.3.4", "::1 alice"},
		{"::/0", "::1 2001:db8::/64", "1.2.3.4 alice"},
		{"10.0.0.0/8 alice 2001:db8::/32", "10.1.1.1 alice 2001:db8::5", "bob"},
		{"", "", "alice 10.0.0.1 ::1"},
	} {
		l, err := keys.NewList(strings.Fields(tt.entries)...)
		if err != nil {
			t.Fatalf("%s: %v", tt.entries, err)
		}
		for _, key := range strings.Fields(tt.in) {
			if !l.Has(key) {
				t.Errorf("[%s] does not have %q", tt.entries, key)
			}
		}
		for _, key := range append(strings.Fields(tt.out), "") {
			if l.Has(key) {
				t.Errorf("[%s] has %q", tt.entries, key)
			}
		}
	}
	l, err := keys.NewList("192.0.2.0/24", "2001:db8::/32", "alice")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"192.0.2.7", "198.51.100.7", "2001:db8:1:2::/64", "bob"} {
		if n := testing.AllocsPerRun(100, func() { l.Has(key) }); n > 0 {
			t.Errorf("%s: Has makes %v allocations, want 0", key, n)
		}
	}
}

// TestListOfKeys: a list can name the keys of each key function of addresses, whatever the
// sizes of its networks are.
func TestListOfKeys(t *testing.T) {
	client := keys.ClientAddr()
	for name, key := range map[string]weir.KeyFunc{
		"ByIP":           weir.ByIP(),
		"ByForwarded":    keys.ByForwarded(),
		"ByIPPrefix 128": keys.ByIPPrefix(32, 128),
		"ByIPPrefix 96":  keys.ByIPPrefix(24, 96),
		"ByIPPrefix 48":  keys.ByIPPrefix(8, 48),
		"ByAddr 128":     keys.ByAddr(client, 32, 128),
		"ByAddr 65":      keys.ByAddr(client, 1, 65),
	} {
		for _, addr := range []string{"192.0.2.7", "2001:db8::7"} {
			entry, _ := key(weirtest.From(netip.AddrPortFrom(netip.MustParseAddr(addr), 4).String()))
			other, _ := key(weirtest.From("[fe80::1]:4"))
			l, err := keys.NewList(entry)
			if err != nil || !l.Has(entry) || l.Has(other) {
				t.Errorf("%s: a list of %s: got %v, want it to have %[2]s and not %s", name, entry, err, other)
			}
		}
	}
}

// TestListMistakes: an entry that would match every key or none is an error. Most of the
// texts say what to list instead.
func TestListMistakes(t *testing.T) {
	for _, tt := range []struct{ entry, keys, addrs string }{ // parts of the errors of NewList and NewAddrList; "" means no error
		{"", "none", "neither"},
		{"*", "every key", "neither"},
		{"alice", "", "neither"},
		{"192.0.2.*", "", "neither"},
		{"10.0.0.0/33", "at most 32", "at most 32"},
		{"10.0.0.0/x", "at most 32", "at most 32"},
		{"10.0.0.0/255.0.0.0", "at most 32", "at most 32"},
		{"2001:db8::/129", "128 for IPv6", "128 for IPv6"},
		{"fe80::1%eth0/64", "list fe80::/64", "list fe80::/64"},
		{"fe80::1%eth0", "list fe80::1", "list fe80::1"},
		{"192.0.2.07", "list 192.0.2.7", "list 192.0.2.7"},
		{"010.0.0.0/8", "list 10.0.0.0/8", "list 10.0.0.0/8"},
		{"192.0.2.7:443", "list 192.0.2.7", "list 192.0.2.7"},
		{"[2001:db8::1]:443", "list 2001:db8::1", "list 2001:db8::1"},
		{"[2001:db8::1]", "list 2001:db8::1", "list 2001:db8::1"},
		{"192.0.2.7 ", "list 192.0.2.7", "list 192.0.2.7"},
		{" 10.0.0.0/8", "list 10.0.0.0/8", "list 10.0.0.0/8"},
		{"10.0.0.0 /8", "list 10.0.0.0/8", "list 10.0.0.0/8"},
		{"alice ", `list "alice"`, "neither"},
		{"2001:db8::1", "", ""},
		{"2001:db8::/65", "", ""},
		{"2001:db8::/64", "", ""},
		{"::ffff:10.0.0.0/90", "list 0.0.0.0/0", "list 0.0.0.0/0"},
		{"64:ff9b::c000:201", "their IPv4 addresses", "their IPv4 addresses"},
		{"64:ff9b::/96", "their IPv4 addresses", "their IPv4 addresses"},
		{"0.0.0.0/0", "", ""},
		{"::/0", "", ""},
	} {
		_, err := keys.NewList("alice", tt.entry)
		_, errAddrs := keys.NewAddrList("10.0.0.0/8", tt.entry)
		for what, got := range map[string]struct {
			err  error
			want string
		}{"NewList": {err, tt.keys}, "NewAddrList": {errAddrs, tt.addrs}} {
			if (got.err != nil) != (got.want != "") || got.err != nil && !strings.Contains(got.err.Error(), got.want) {
				t.Errorf("%s of %q: got %v, want an error with %q", what, tt.entry, got.err, got.want)
			}
		}
	}
}

func TestAddrList(t *testing.T) {
	for _, tt := range []struct{ entries, in, out string }{
		{"192.0.2.7", "192.0.2.7 ::ffff:192.0.2.7 64:ff9b::192.0.2.7", "192.0.2.8"},
		{"10.0.0.0/8", "10.0.0.0 10.255.255.255", "11.0.0.0 ::a00:1 64:ff9b::10.0.0.1"},
		{"::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"},
		{"2001:db8::1", "2001:db8::1 2001:db8::1%eth0", "2001:db8::2"},
		{"2001:db8::/120 2001:db8:1::/48", "2001:db8::ff 2001:db8:1:2::3", "2001:db8::100"},
		{"", "", "192.0.2.7 ::1"},
	} {
		l, err := keys.NewAddrList(strings.Fields(tt.entries)...)
		if err != nil {
			t.Fatalf("%s: %v", tt.entries, err)
		}
		for i, addrs := range []string{tt.out, tt.in} {
			for _, addr := range strings.Fields(addrs) {
				if got := l.Has(netip.MustParseAddr(addr)); got != (i == 1) {
					t.Errorf("[%s] has %s: got %v, want %v", tt.entries, addr, got, i == 1)
				}
			}
		}
		if l.Has(netip.Addr{}) || l.Match(keys.ClientAddr())(weirtest.From("@")) {
			t.Errorf("[%s] has the zero Addr", tt.entries)
		}
	}
}

// TestListsOfAddresses: an AddrList is compared with the address of the client, also
// behind proxies, whatever the key of the rule is.
func TestListsOfAddresses(t *testing.T) {
	friends, err := keys.NewAddrList("192.0.2.1", "2001:db8::1")
	if err != nil {
		t.Fatal(err)
	}
	pests, err := keys.NewAddrList("192.0.2.0/24", "2001:db8::/120")
	if err != nil {
		t.Fatal(err)
	}
	client := keys.ClientAddr(proxy)
	for name, key := range map[string]weir.KeyFunc{
		"ip":        weir.ByIP(proxy),
		"ip,method": weir.Join(weir.ByIP(proxy), keys.ByMethod()),
		"first-of":  weir.FirstOf(weir.ByHeader("X-Api-Key"), weir.ByIP(proxy)),
		"global":    weir.Global(),
		"route":     keys.ByRoute(),
		"none":      never,
	} {
		asked := 0
		h := weirtest.New(t, weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { asked++; return errors.New("asked") }), weir.Options{
			Rules: []weir.Rule{{
				Name: "api", Key: key, Limits: []weir.Limit{algorithms.GCRA(9, time.Second)},
				Policy: weir.When(friends.Match(client), weir.Allowed(), weir.When(pests.Match(client), weir.Denied())),
			}},
			OnError: weir.FailClosed,
		}).Handler(served)
		other := 503 // the status if the store is asked, because it always fails
		if name == "none" {
			other = 200
		}
		for _, tt := range []struct {
			addr string
			want int
		}{
			{"192.0.2.1", 200}, {"192.0.2.2", 429}, {"198.51.100.1", other},
			{"2001:db8::1", 200}, {"2001:db8::2", 429}, {"2001:db8::1:2", other}, // all in one /64
		} {
			if got := weirtest.Do(h, weirtest.Ask("/", "10.0.0.1:4", "X-Forwarded-For", tt.addr)).StatusCode; got != tt.want {
				t.Errorf("%s: %s: got %d, want %d", name, tt.addr, got, tt.want)
			}
			// A key that looks like a listed address matches no entry.
			if got := weirtest.Do(h, weirtest.Ask("/", "10.0.0.1:4", "X-Forwarded-For", tt.addr, "X-Api-Key", "192.0.2.1")).StatusCode; got != tt.want {
				t.Errorf("%s: %s with the key 192.0.2.1: got %d, want %d", name, tt.addr, got, tt.want)
			}
		}
	}
	// The list also refuses preflight requests.
	h := weirtest.New(t, weirtest.StoreFunc(nil), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, Policy: weir.When(pests.Match(client), weir.Denied()),
	}}}).Handler(served)
	preflight := weirtest.Ask("/", "192.0.2.2:4", "Origin", "https://example.com", "Access-Control-Request-Method", "PUT")
	preflight.Method = "OPTIONS"
	if got := weirtest.Do(h, preflight).StatusCode; got != 429 {
		t.Errorf("a preflight: got %d, want 429", got)
	}
	// A rule in shadow refuses no request.
	h = weirtest.New(t, weirtest.StoreFunc(nil), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: never, Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, Enforce: weir.Percent(0), Policy: weir.When(pests.Match(client), weir.Denied()),
	}}}).Handler(served)
	if got := weirtest.Do(h, weirtest.Ask("/", "192.0.2.2:4")).StatusCode; got != 200 {
		t.Errorf("in shadow: got %d, want 200", got)
	}
}

func ExampleNewAddrList() {
	pests, err := keys.NewAddrList("203.0.113.0/24", "2001:db8::1")
	if err != nil {
		fmt.Println(err)
		return
	}
	proxies := netip.MustParsePrefix("10.0.0.0/8")
	rule := weir.Rule{
		Name: "api", Key: weir.Join(weir.ByIP(proxies), keys.ByMethod()), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
		Policy: weir.When(pests.Match(keys.ClientAddr(proxies)), weir.Denied()),
	}
	for _, client := range []string{"203.0.113.9", "192.0.2.1"} {
		fmt.Println(client, rule.Policy(weirtest.From("10.0.0.1:443", client)).Is(weir.Denied()))
	}
	_, err = keys.NewAddrList("203.0.113.9:443")
	fmt.Println(err)
	// Output:
	// 203.0.113.9 true
	// 192.0.2.1 false
	// keys: list: entry "203.0.113.9:443" has a port, brackets, a zone, spaces or leading zeros: list 203.0.113.9
}

// TestLists: neither Allowed nor Denied asks the store.
func TestLists(t *testing.T) {
	admins, err := keys.NewList("192.0.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	pests, err := keys.NewList("192.0.2.66", "203.0.113.0/24")
	if err != nil {
		t.Fatal(err)
	}
	asked := errors.New("asked")
	var denied string
	h := weirtest.New(t, weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return asked }), weir.Options{
		Rules: []weir.Rule{
			{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, ForKey: func(string) weir.Policy { return weir.Allowed() }},
			{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, ForKey: weir.When(admins.Has, weir.Allowed(), weir.When(pests.Has, weir.Denied()))},
		},
		OnError: weir.FailClosed,
		Observe: func(e weir.Event) {
			if denied = ""; e.Refusal.Reason == weir.ReasonDeny {
				denied = e.Refusal.Rule
			}
		},
	}).Handler(served)
	for _, tt := range []struct {
		remote string
		status int
		denied string
	}{
		{"192.0.2.1:4", 200, ""},
		{"192.0.2.66:4", 200, ""},
		{"203.0.113.9:4", 429, "api"},
		{"198.51.100.1:4", 503, ""},
	} {
		denied = ""
		res := weirtest.Do(h, weirtest.Ask("/", tt.remote, "Accept", "application/json"))
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != tt.status || denied != tt.denied {
			t.Errorf("%s: got %d, denied by %q, want %d by %q", tt.remote, res.StatusCode, denied, tt.status, tt.denied)
		}
		if tt.status == 429 && !strings.Contains(string(body), "abnormal-usage-detected") {
			t.Errorf("%s: got %s, want the type abnormal-usage-detected", tt.remote, body)
		}
	}
}

func ExampleNewList() {
	offices, err := keys.NewList("192.0.2.0/24", "2001:db8::/32", "partner/*")
	if err != nil {
		fmt.Println(err)
		return
	}
	rule := weir.Rule{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}, ForKey: weir.When(offices.Has, weir.Allowed())}
	fmt.Println(rule.ForKey("192.0.2.9").Is(weir.Allowed()), rule.ForKey("198.51.100.9").Is(weir.Allowed()))
	// Output: true false
}
