package weir_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

func TestList(t *testing.T) {
	for _, tt := range []struct {
		entries, in, out string
	}{
		{"alice bob", "alice bob", "ali alicea ALICE 192.0.2.1"},
		{"tenant-a/*", "tenant-a/ tenant-a/x", "tenant-a tenant-ab tenant-b/x"},
		{"a* b*", "a ab b bc", "c ca"},
		{"192.0.2.7", "192.0.2.7 ::ffff:192.0.2.7", "192.0.2.8 192.0.2.70"},
		{"10.0.0.0/8", "10.0.0.0 10.255.255.255 10.1.0.0/16", "11.0.0.0 9.255.255.255 10.0.0.0/7 ::a00:1"},
		{"10.1.2.3/8", "10.9.9.9", "11.1.2.3"}, // as networks are often written
		{"2001:db8::/32", "2001:db8::1 2001:db8:1::/64 2001:db8::/32", "2001:db9::1 2001:db8::/31"},
		{"2001:db8::1", "2001:db8::1 2001:DB8:0::1", "2001:db8::/64 2001:db8::2"},
		{"0.0.0.0/0", "1.2.3.4", "::1 alice"},
		{"::/0", "::1 2001:db8::/64", "1.2.3.4 alice"},
		{"10.0.0.0/8 alice 2001:db8::/32", "10.1.1.1 alice 2001:db8::5", "bob"},
		{"", "", "alice 10.0.0.1 ::1"},
	} {
		l, err := weir.NewList(strings.Fields(tt.entries)...)
		if err != nil {
			t.Fatalf("%s: %v", tt.entries, err)
		}
		for _, key := range strings.Fields(tt.in) {
			if !l.Has(key) {
				t.Errorf("[%s] has not %q, want that it has", tt.entries, key)
			}
		}
		for _, key := range append(strings.Fields(tt.out), "") {
			if l.Has(key) {
				t.Errorf("[%s] has %q, want that it has not", tt.entries, key)
			}
		}
	}
	for _, entry := range []string{"", "*", "10.0.0.0/33", "10.0.0.0/x", "2001:db8::/129", "fe80::1%eth0/64"} {
		if _, err := weir.NewList("alice", entry); err == nil {
			t.Errorf("got no error for %q, want one", entry)
		}
	}
}

// TestLists: neither list asks the store; Allow comes first.
func TestLists(t *testing.T) {
	admins, err := weir.NewList("192.0.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	pests, err := weir.NewList("192.0.2.66", "203.0.113.0/24")
	if err != nil {
		t.Fatal(err)
	}
	asked := errors.New("asked")
	var denied string
	h := must(t, storeFunc(func(context.Context, *weir.Transaction) error { return asked }), weir.Options{
		Rules: []weir.Rule{
			{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, Allow: func(string) bool { return true }},
			{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, Allow: admins.Has, Deny: pests.Has},
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
		res := do(h, ask("/", tt.remote, "Accept", "application/json"))
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
	offices, err := weir.NewList("192.0.2.0/24", "2001:db8::/32", "partner/*")
	if err != nil {
		fmt.Println(err)
		return
	}
	rule := weir.Rule{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}, Allow: offices.Has}
	fmt.Println(rule.Allow("192.0.2.9"), rule.Allow("198.51.100.9"))
	// Output: true false
}
