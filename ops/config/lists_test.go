package config

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/seed83679106/weir"
)

type listCase struct{ key, entry, want, wrong string }

// listed has list entries, each with the key of its rule and the names of the requests that
// the entry matches (want). wrong is a part of the error if the entry is an error.
var listed = []listCase{
	// An entry that is an address is compared with the address of the request, under every key.
	{"ip", "198.51.100.7", "v4", ""},
	{"ip", "198.51.100.0/24", "v4", ""},
	{"ip", "::ffff:198.51.100.0/120", "v4", ""},
	{"ip", "2001:db8::7", "v6", ""},
	{"ip", "2001:db8::/125", "v6", ""},
	{"ip", "2001:db8::/64", "v6 neighbour", ""},
	{"ip", "2001:db8::8", "", ""}, // the client v6 has another address of the same /64
	{"ip", "198.51.100.…", "v4", ""},
	{"[ip, method]", "198.51.100.7", "v4", ""},
	{"[ip, method]", "2001:db8::7", "v6", ""},
	{"{first-of: [header:X-Key, ip]}", "198.51.100.7", "v4", ""},
	{"global", "198.51.100.7", "v4", ""},
	{"global", "2001:db8::7", "v6", ""},
	{"route", "198.51.100.0/24", "v4", ""},
	{"method", "198.51.100.7", "v4", ""},
	{"header:X-Key", "198.51.100.7", "v4", ""},
	{"user", "198.51.100.7", "v4", ""},
	{"[user, method]", "198.51.100.7", "v4", ""},

	// Keys.
	{"user", "alice", "alice", ""},
	{"user", "ali…", "alice", ""},
	{"header:X-User", "alice", "alice", ""},
	{"basic-auth-user", "alice", "alice", ""}, // the client writes it in upper case
	{"[user, method]", "5:alice,3:GET,", "alice", ""},
	{"[user, method]", "5:alice,…", "alice", ""},
	{"{first-of: [user, ip]}", "0:alice", "alice", ""},
	{"{first-of: [user, ip]}", "0:ali…", "alice", ""},
	{"method", "GET", "v4 v6 neighbour alice", ""},
	{"route", "unmatched", "v4 v6 neighbour alice", ""},
	{"header:Host", "example.com", "v4 v6 neighbour alice", ""},

	// Entries that no key can match.
	{"ip", "alice", "", "want an address such as 192.0.2.1"},
	{"ip", "2001:DB8:…", "", "want an address such as 192.0.2.1"},
	{"[user, method]", "alice", "", `"5:alice,3:GET,"`},
	{"[user, method]", "ali…", "", `"5:alice,3:GET,"`},
	{"[user, method]", "5", "", `"5:alice,3:GET,"`},
	{"{first-of: [user, ip]}", "alice", "", `want "0:alice"`},
	{"{first-of: [user, ip]}", "2:alice", "", `want "0:2:alice"`},
	{"global", "alice", "", "only addresses and networks"},
	{"method", "get", "", "want one of GET, HEAD"},
	{"route", "users", "", "want a pattern such as /users/{id}"},
	{"header:Host", "Example.com:443", "", `want "example.com"`},
	{"basic-auth-user", "Alice", "", `want "alice"`},
	{"json:user", "ALICE…", "", `want "alice"`},
	{"json:user", "οδυσσευς", "", `want "οδυσσευσ"`},
	{"path:room", "a%62%2563…", "", `want "abc"`},
	{"ip", "198.51.100.07", "", "list 198.51.100.7"},
	{"global", "198.51.100.7:80", "", "list 198.51.100.7"},
	{"user", "alice ", "", `list "alice"`},
	{"user", "ali*", "", `"ali*" ends with an asterisk: write {prefix: "ali"} for all keys with this prefix, or {key: "ali*"} for this key alone`},
	{"user", "…", "", "an empty prefix would match every key"},
}

func TestLists(t *testing.T) {
	denied := false
	o := testOptions
	o.Limiter.Observe = func(e weir.Event) { denied = e.Refusal.Reason == weir.ReasonDeny }
	for _, tt := range listed {
		for _, list := range []string{"allow", "deny"} {
			for _, header := range []string{"X-Forwarded-For", "Forwarded"} {
				entry := strconv.Quote(tt.entry)
				if prefix, ok := strings.CutSuffix(tt.entry, "…"); ok {
					entry = fmt.Sprintf("{prefix: %q}", prefix)
				}
				text := fmt.Sprintf("trusted-proxies: [192.0.2.0/24]\nproxy-header: %s\nlimits:\n- name: a\n  key: %s\n  %s: [%s]\n  config: [{limit: 100, period: 1h}]\n",
					strings.ToLower(header), tt.key, list, entry)
				f, err := open(text, o)
				if tt.wrong != "" || err != nil {
					tt.checkError(t, list, err)
					continue
				}
				tt.checkListed(t, f.Handler("a")(ok), list, header, &denied)
			}
		}
	}
}

// checkListed sends a request from each client through a proxy that writes the given header
// field, and checks whether the list matches the request.
func (tt listCase) checkListed(t *testing.T, h http.Handler, list, header string, denied *bool) {
	t.Helper()
	for _, from := range []struct{ name, addr, node, user string }{
		{"v4", "198.51.100.7", "198.51.100.7", "bob"}, {"v6", "2001:db8::7", `"[2001:db8::7]"`, "bob"},
		{"neighbour", "2001:db8::9", `"[2001:db8::9]"`, "bob"}, {"alice", "203.0.113.9", "203.0.113.9", "alice"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "192.0.2.1:4"
		r.Header.Set("X-User", from.user)
		r.SetBasicAuth(strings.ToUpper(from.user), "")
		r.Header.Set("X-Key", "198.51.100.7")           // a key that looks like an address exempts no client
		r.Header.Set("X-Forwarded-For", "198.51.100.7") // forged by the client
		r.Header.Set("Forwarded", "for=198.51.100.7")
		r.Header.Set(header, map[string]string{"Forwarded": "for=" + from.node, "X-Forwarded-For": from.addr}[header])
		want := strings.Contains(" "+tt.want+" ", " "+from.name+" ") || list == "deny" && tt.key == "header:X-Key"
		*denied = false
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		got := *denied
		if list == "allow" {
			got = w.Header().Get("X-RateLimit-Limit") == ""
		}
		if got != want {
			t.Errorf("key %s, %s %q, %s: %s is listed: got %v, want %v", tt.key, list, tt.entry, header, from.name, got, want)
		}
	}
}

// checkError expects the error of a list whose entry is wrong.
func (tt listCase) checkError(t *testing.T, list string, err error) {
	t.Helper()
	if tt.wrong == "" {
		t.Errorf("key %s, %s %q: %v", tt.key, list, tt.entry, err)
		return
	}
	if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("r.yaml:6:%d: %s: ", len(list)+6, list)) || !strings.Contains(err.Error(), tt.wrong) {
		t.Errorf("key %s, %s %q: got %v, want an error in line 6 with %q", tt.key, list, tt.entry, err, tt.wrong)
	}
}
