package main

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestMisfits: weir serve warns of each part of a file that does not work with its flags, at start
// and again after a reload, and weir check prints the same. The answers to two requests, of the
// given clients, show that the effect is what the warning says.
func TestMisfits(t *testing.T) {
	const trusted = "trusted-proxies: [127.0.0.1]\n"
	rule := func(key string) string {
		return trusted + "limits: [{name: login, " + key + ", config: [{limit: 1, period: 1h}]}]\n"
	}
	for _, tt := range []struct {
		name, file  string
		forwardAuth bool // works with -upstream
		part        string
		effect      string
		clients     [2]string
		statuses    string
	}{
		{"no proxies but on sockets, where weir serves none", strings.Replace(rule("key: ip"), "127.0.0.1", "unix", 1), true, "trusted-proxies", "every request to /auth is refused with 400", [2]string{"192.0.2.1", "192.0.2.2"}, "400 400"},
		{"no proxies", strings.TrimPrefix(rule("key: ip"), trusted), true, "trusted-proxies", "every request to /auth is refused with 400", [2]string{"192.0.2.1", "192.0.2.2"}, "400 400"},
		{"json", rule("key: json:user"), true, "json:user", "all requests share the value unreadable", [2]string{"192.0.2.1", "192.0.2.2"}, "200 429"},
		{"json in a list", rule("key: [method, {first-of: [json:a.b, ip]}]"), true, "json:a.b", "all requests share the value unreadable", [2]string{"192.0.2.1", "192.0.2.2"}, "200 429"},
		{"content-length", rule("cost: content-length"), true, "content-length", "every request costs 0", [2]string{"192.0.2.1", "192.0.2.1"}, "200 200"},
		{"failed requests", rule("key: ip, settle: failed"), true, "status", "no request is charged", [2]string{"192.0.2.1", "192.0.2.1"}, "200 200"},
		{"route", rule("key: route"), false, "route", "all requests share the value unmatched", [2]string{"192.0.2.1", "192.0.2.2"}, "200 429"},
		{"a list of addresses", rule("key: header:X-Forwarded-For"), false, "header:X-Forwarded-For", "clients can choose the value", [2]string{"192.0.2.1", "192.0.2.2"}, "200 200"},
		{"path", rule("key: path:id"), false, "path:id", "no request has the value", [2]string{"192.0.2.1", "192.0.2.1"}, "200 200"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tt.file)
			want := fmt.Sprintf(`"part":%q,"effect":"%s`, tt.part, tt.effect)
			if tt.part != "trusted-proxies" {
				want = `"weir: part of a rule does not work as intended","rule":"login",` + want
			}
			const token = "0123456789abcdef"
			s := startService(t, "-limits", path, "-admin-token", token)
			warned := func(n int) func() bool {
				return func() bool { return strings.Count(s.log.String(), want) >= n }
			}
			eventually(t, "a warning: "+want, warned(1))
			if _, page := get(t, http.DefaultClient, s.url("admin-addr")+"/", "Authorization", "Bearer "+token); !strings.Contains(page, tt.effect) {
				t.Errorf("the page of operators lacks the warning %q", tt.effect)
			}
			var statuses []string
			for _, client := range tt.clients {
				resp, _ := get(t, from(t, "127.0.0.1"), s.url("auth-addr")+"/auth", asking(client)...)
				statuses = append(statuses, fmt.Sprint(resp.StatusCode))
			}
			if got := strings.Join(statuses, " "); got != tt.statuses {
				t.Errorf("got the statuses %s, want %s", got, tt.statuses)
			}
			writeFile(t, path, tt.file+"# changed\n")
			eventually(t, "a warning after a reload: "+want, warned(2))

			with := "with weir serve, "
			if tt.forwardAuth {
				with = "with forward auth (without -upstream), "
			}
			var stdout, stderr bytes.Buffer
			status := run(t.Context(), []string{"check", path}, nil, &stdout, &stderr)
			if lines := strings.Split(stdout.String(), "\n"); status != 0 || len(lines) != 3 || lines[1] != path+": ok" ||
				!strings.HasPrefix(lines[0], path+": warning: "+with+tt.part) || !strings.Contains(lines[0], tt.effect) {
				t.Errorf("weir check: got status %d, %s%s", status, &stdout, &stderr)
			}
		})
	}
}

// TestMisfitsOfUpstream: with -upstream, a file needs no trusted-proxies, and requests have bodies.
// They have no routes.
func TestMisfitsOfUpstream(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), `
limits:
- {name: a, key: json:user, cost: content-length, config: [{limit: 1, period: 1h}]}
- {name: b, key: route, config: [{limit: 1, period: 1h}]}
`)
	s := startService(t, "-limits", path, "-upstream", "http://127.0.0.1:1")
	eventually(t, "a warning", func() bool { return strings.Contains(s.log.String(), `"rule":"b","part":"route"`) })
	if log := s.log.String(); strings.Contains(log, "trusted-proxies") || strings.Contains(log, `"rule":"a"`) {
		t.Errorf("got a warning of what works with -upstream:\n%s", log)
	}
}
