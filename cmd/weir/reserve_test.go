package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/redistest"
)

const tokenLimits = `trusted-proxies: [127.0.0.1]
limits:
  - name: tokens
    key: header:X-Tenant
    algorithm: fixed-window
    config: [{limit: 100, period: 100h}]
    overrides: [{value: free, config: unlimited}, {value: none, config: denied}]
  - {name: log, key: header:X-Tenant, algorithm: sliding-log, config: [{limit: 10, period: 1h}]}
  - {name: flights, key: header:X-Tenant, algorithm: in-flight, config: [{limit: 3, period: 1h}]}
  - {name: classes, key: header:X-Tenant, class: header:X-Class, headroom: {batch: 30%}, config: [{limit: 10, period: 1h}]}
  - {name: shadow, key: header:X-Tenant, enforce: 0%, config: [{limit: 3, period: 1h}]}
`

// A desk calls a service.
type desk struct {
	*testing.T
	*running
}

func (d desk) call(path, body string) (status int, answer map[string]any, text string) {
	d.Helper()
	resp, err := http.Post(d.url("auth-addr")+path, "application/json", strings.NewReader(body))
	if err != nil {
		d.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode == 200 {
		if err := json.Unmarshal(b, &answer); err != nil {
			d.Fatal(err)
		}
	}
	return resp.StatusCode, answer, string(b) + resp.Header.Get("Retry-After")
}

// take reserves or draws units and returns the new id, or "" if they are refused.
func (d desk) take(path, body string) string {
	d.Helper()
	status, answer, text := d.call(path, body)
	if status == http.StatusTooManyRequests {
		return ""
	}
	if status != 200 {
		d.Fatalf("%s %s: got %d, %s", path, body, status, text)
	}
	return answer["id"].(string)
}

func (d desk) reserve(rule, key string, units int) string {
	d.Helper()
	return d.take("/reserve", fmt.Sprintf(`{"rule": %q, "key": %q, "units": %d}`, rule, key, units))
}

func (d desk) settle(id string, used int, first bool) {
	d.Helper()
	status, answer, text := d.call("/settle", fmt.Sprintf(`{"id": %q, "used": %d}`, id, used))
	if _, charged := answer["charged"]; status != 200 || answer["first"] != first || charged != first {
		d.Errorf("settled %d: got %d, %s; want first %v", used, status, text, first)
	}
}

// left fails the test unless so many units are left, which it finds by reserving them, and settles by 0.
func (d desk) left(rule, key string, want int) {
	d.Helper()
	if id := d.reserve(rule, key, want+1); id != "" {
		d.Errorf("%s, %s: got %d units or more, want %d", rule, key, want+1, want)
		d.settle(id, 0, true)
	}
	if want == 0 {
		return
	}
	if id := d.reserve(rule, key, want); id == "" {
		d.Errorf("%s, %s: got fewer than %d units", rule, key, want)
	} else {
		d.settle(id, 0, true)
	}
}

// TestReserveKeys: a key that no request can have is an error, and the plain key of a hashed rule is that of
// its requests.
func TestReserveKeys(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), `trusted-proxies: [127.0.0.1]
limits:
  - {name: client, config: [{limit: 9, period: 1h}]}
  - {name: all, key: global, config: [{limit: 9, period: 1h}]}
  - {name: tenant, key: header:X-Tenant, config: [{limit: 9, period: 1h}]}
  - {name: api, key: 'hashed:header:X-Api-Key', config: [{limit: 9, period: 1h}]}
`)
	const secret = "0123456789abcdef"
	d := desk{t, startService(t, "-limits", limits, "-key-secret", secret)}
	const looksHashed = "_ONuPZSTye6rchhHid6-1Q" // as Python's secrets.token_urlsafe(16) makes API keys
	for _, tt := range []struct {
		rule, key string
		status    int
		text      string
	}{
		{"client", "192.0.2.1", 200, ""},
		{"client", "acme", 400, `"acme" is never the key of rule "client": want an address such as 192.0.2.1`},
		{"client", "", 400, `key is ""; rule "client" has other keys`},
		{"all", "", 200, ""},
		{"all", "acme", 400, `"acme" is never the key of rule "all": `},
		{"tenant", "acme", 200, ""},
		{"tenant", "", 400, `key is ""; rule "tenant" has other keys`},
		{"tenant", strings.Repeat("x", 200), 200, ""},
		{"none", "", 404, `no rule "none"`},
		{"api", "sk-alice", 200, ""},
		{"api", `", "hashed": true, "key": "` + weir.HashedKey([]byte(secret), "sk-alice"), 429, ""}, // 9 of 9 units are spent
		{"api", looksHashed, 200, ""},
		{"api", `", "hashed": true, "key": "` + weir.HashedKey([]byte(secret), looksHashed), 429, ""},
		{"api", `", "hashed": true, "key": "` + looksHashed, 200, ""},
	} {
		status, _, text := d.call("/reserve", fmt.Sprintf(`{"rule": %q, "units": 9, "key": "%s"}`, tt.rule, tt.key))
		if status != tt.status || !strings.Contains(text, tt.text) || strings.Contains(text, "config:") {
			t.Errorf("rule %s, key %q: got %d, %s; want %d, %s", tt.rule, tt.key, status, text, tt.status, tt.text)
		}
	}
}

// TestReservations: of two replicas, each settles what the other has reserved, also after its death, and
// a reservation is settled once.
func TestReservations(t *testing.T) {
	dir := t.TempDir()
	limits := writeFile(t, filepath.Join(dir, "limits.yaml"), tokenLimits)
	for name, flags := range map[string][]string{"memory": nil, "Redis": {"-redis-addrs", redistest.Server(t).Addr(), "-redis-timeout", "5s"}} {
		t.Run(name, func(t *testing.T) {
			flags := append([]string{"-limits", limits, "-key-secret", "0123456789abcdef"}, flags...)
			d := desk{t, startService(t, flags...)}
			id := d.reserve("tokens", "acme", 60)
			drawn := d.take("/draw", fmt.Sprintf(`{"id": %q, "units": 30}`, id))
			d.left("tokens", "acme", 10)
			if got := d.take("/draw", fmt.Sprintf(`{"id": %q, "units": 11}`, drawn)); got != "" {
				t.Error("drew more than is left")
			}
			other := d.reserve("tokens", "acme", 10)
			if name == "Redis" { // the first replica dies
				if err := d.stop(); err != nil {
					t.Fatal(err)
				}
				d = desk{t, startService(t, flags...)}
			}
			d.settle(drawn, 50, true)
			d.settle(drawn, 0, false) // the same call again, or a wrong one
			d.settle(id, 0, false)    // the id before the draw is the same reservation
			d.left("tokens", "acme", 40)
			if status, _, text := d.call("/draw", fmt.Sprintf(`{"id": %q, "units": 1}`, drawn)); status != 409 {
				t.Errorf("a draw after the settlement: got %d, %s", status, text)
			}
			d.settle(other, 25, true) // more than was reserved
			d.left("tokens", "acme", 25)
			d.settle(d.reserve("tokens", "acme", 25), 125, true) // a debt
			d.left("tokens", "acme", 0)
			d.left("log", "acme", 10)
			d.settle(d.reserve("log", "acme", 7), 2, true)
			d.left("log", "acme", 8)

			batch := d.take("/reserve", `{"rule": "classes", "key": "acme", "class": "batch", "units": 6}`)
			for path, body := range map[string]string{
				"/reserve": `{"rule": "classes", "key": "acme", "class": "batch", "units": 2}`,
				"/draw":    fmt.Sprintf(`{"id": %q, "units": 2}`, batch),
			} {
				if got := d.take(path, body); got != "" {
					t.Errorf("%s: a class does not leave its headroom", path)
				}
			}
			d.left("classes", "acme", 4)

			a, b := d.reserve("flights", "acme", 2), d.reserve("flights", "acme", 1)
			d.left("flights", "acme", 0)
			d.settle(a, 2, true) // units in flight are released, whatever was used
			d.left("flights", "acme", 2)
			d.settle(b, 0, true)

			d.settle(d.reserve("tokens", "free", 1000), 1000, true)
			d.settle(d.reserve("tokens", "free", 1000), 2000, true)
			for range 5 {
				d.settle(d.reserve("shadow", "acme", 1), 1, true) // refuses nothing
			}
		})
	}
}

// TestReserveLongKey: an override of a prefix applies to a key that is stored as a digest, too.
func TestReserveLongKey(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), `trusted-proxies: [127.0.0.1]
limits:
  - name: tenant
    key: header:X-Tenant
    algorithm: fixed-window
    config: [{limit: 9, period: 100h}]
    overrides: [{value: {prefix: mallory/}, config: denied}, {value: {prefix: acme/}, config: [{limit: 100}]}]
`)
	d := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdef")}
	long := strings.Repeat("x", 200)
	for key, want := range map[string]int{"mallory/": 403, "acme/": 200, "other/": 429} {
		for _, key := range []string{key, key + long} {
			status, answer, text := d.call("/reserve", fmt.Sprintf(`{"rule": "tenant", "key": %q, "units": 50}`, key))
			if status != want {
				t.Errorf("%.20s: got %d, %s; want %d", key, status, text, want)
			}
			if status == 200 {
				d.settle(d.take("/draw", fmt.Sprintf(`{"id": %q, "units": 30}`, answer["id"])), 10, true)
				d.left("tenant", key, 90)
			}
		}
	}
	if status, _, text := d.call("/reserve", fmt.Sprintf(`{"rule": "tenant", "key": %q, "units": 1}`, strings.Repeat(long, 100))); status != 400 {
		t.Errorf("a key of 20,000 bytes: got %d, %.200s; want 400", status, text)
	}
}

// TestReserveInShadow: a rule refuses the reservations of the keys for which it is enforced, and no others.
func TestReserveInShadow(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), `trusted-proxies: [127.0.0.1]
limits:
  - name: some
    key: header:X-Tenant
    enforce: 50%
    algorithm: fixed-window
    config: [{limit: 1, period: 100h}]
    overrides: [{value: {prefix: denied}, config: denied}]
`)
	d := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdef")}
	refused := 0
	for i := range 40 {
		for _, key := range []string{fmt.Sprint("key", i), fmt.Sprint("denied", i)} {
			for range 2 {
				get(t, http.DefaultClient, d.url("auth-addr")+"/auth", append(asking("192.0.2.1"), "X-Tenant", key)...)
			}
			resp, _ := get(t, http.DefaultClient, d.url("auth-addr")+"/auth", append(asking("192.0.2.1"), "X-Tenant", key)...)
			status, answer, text := d.call("/reserve", fmt.Sprintf(`{"rule": "some", "key": %q, "units": 1}`, key))
			if (status == 200) != (resp.StatusCode == 200) {
				t.Fatalf("%s: a request gets %d, a reservation %d, %s", key, resp.StatusCode, status, text)
			}
			if status != 200 {
				refused++
				continue
			}
			if answer["units"] != 1.0 {
				t.Errorf("%s: got %v units, want 1", key, answer["units"])
			}
			d.settle(answer["id"].(string), 0, true)
		}
	}
	if refused == 0 || refused == 80 {
		t.Errorf("%d of 80 keys are refused, want a part", refused)
	}
}

// TestSecretsCompared: processes that share Redis compare -key-secret by a short digest of it, and with one
// that has none; package stack logs what differs. Their metrics have what Redis has lost.
func TestSecretsCompared(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tokenLimits)
	server := redistest.Server(t)
	var first *running
	for _, secret := range []string{"0123456789abcdef", "0123456789abcdef", "0123456789abcdeg", ""} {
		first = cmp.Or(first, startService(t, "-limits", limits, "-key-secret", secret, "-redis-addrs", server.Addr()))
	}
	eventually(t, "Redis has three digests", func() bool {
		text, err := server.Do("HGET", "weir:limits", "\n-key-secret")
		return err == nil && regexp.MustCompile(`^(\d+ \w+ "([0-9a-f]{8}|none)"\n){3}$`).MatchString(fmt.Sprint(text))
	})
	if _, err := server.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the metrics have the loss", func() bool {
		_, text := get(t, http.DefaultClient, first.url("auth-addr")+"/metrics")
		return strings.Contains(text, "weir_redis_lost_total 1\n") && strings.Contains(text, "weir_redis_evicted_total 0\n")
	})
}

// TestReservationClocks: only the first settlement counts, even if the clock of the replica that gets the
// second one is 50 s behind that of Redis.
func TestReservationClocks(t *testing.T) {
	lua := redistest.Lua54(t)
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tokenLimits)
	d := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdef", "-redis-addrs", lua.Addr(), "-redis-timeout", "5s")}
	begin := time.UnixMicro(1_700_000_000_000_000)
	lua.SetTime(begin)
	id := d.reserve("tokens", "acme", 40)
	d.settle(id, 10, true)
	lua.SetTime(begin.Add(usualLife + 50*time.Second))
	d.settle(id, 10, false)
	d.left("tokens", "acme", 90)
}

// TestReservationErrors: what is wrong with a call is said by its status.
func TestReservationErrors(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tokenLimits)
	d := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdef")}
	other := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdeg")}
	open := desk{t, startService(t, "-limits", limits)}
	id := d.reserve("tokens", "acme", 1)
	v, err := newReservations(&gateway{o: &options{keySecret: "0123456789abcdef"}, logger: slog.New(slog.DiscardHandler)}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := v.seal(&reservation{End: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		d          desk
		path, body string
		status     int
		text       string
	}{
		{d, "/reserve", `{"rule": "tokens", "key": "none", "units": 1}`, 403, "denied"},
		{d, "/reserve", `{"rule": "tokens", "key": "acme", "units": 1000}`, 429, "Quota Exceeded"},
		{d, "/reserve", `{"rule": "token", "key": "acme", "units": 1}`, 404, `no rule "token"`},
		{d, "/reserve", `{"rule": "tokens", "key": "acme"}`, 400, "units is 0"},
		{d, "/reserve", `{"rule": "tokens", "key": "acme", "units": 1, "seconds": 86401}`, 400, "want 1 to 86400"},
		{d, "/reserve", `{"rule": "tokens", "unit": 1}`, 400, `unknown field`},
		{d, "/reserve", `{"rule": "tokens", "units": 1}`, 400, `key is missing`},
		{d, "/reserve", `{"rule": "tokens", "key": "acme", "units": 1}{"rule": "tokens"}`, 400, `text after the object`},
		{d, "/reserve", `{"rule": "tokens", "key": "acme", "units": 1, "class": "batch"}`, 400, `"tokens" has no classes`},
		{d, "/settle", `{"id": "` + id + `"}`, 400, "used is missing"},
		{d, "/settle", `{"id": "` + id + `", "used": -1}`, 400, "used is -1"},
		{d, "/settle", `{"id": "` + id[:len(id)-2] + `", "used": 1}`, 404, "no such"},
		{d, "/settle", `{"id": "` + ended + `", "used": 1}`, 410, "its units stay charged"},
		{other, "/settle", `{"id": "` + id + `", "used": 1}`, 404, "-key-secret"},
		{open, "/reserve", `{"rule": "tokens", "key": "acme", "units": 1}`, 501, "-key-secret"},
	} {
		if status, _, text := tt.d.call(tt.path, tt.body); status != tt.status || !strings.Contains(text, tt.text) {
			t.Errorf("%s %s: got %d, %s; want %d, %s", tt.path, tt.body, status, text, tt.status, tt.text)
		}
	}
	if resp, err := from(t, "127.0.0.2").Post(d.url("auth-addr")+"/reserve", "", strings.NewReader(`{}`)); err != nil || resp.StatusCode != 400 {
		t.Errorf("from an address that is not trusted: got %v, %v; want 400", resp, err)
	}
	for _, field := range []string{"X-Forwarded-For", "Forwarded"} {
		r, _ := http.NewRequest("POST", d.url("auth-addr")+"/reserve", strings.NewReader(`{"rule": "tokens", "key": "acme", "units": 1}`))
		r.Header.Set(field, "for=192.0.2.1")
		if resp, err := http.DefaultClient.Do(r); err != nil || resp.StatusCode != 400 {
			t.Errorf("with %s: got %v, %v; want 400", field, resp, err)
		}
	}
	for text, s := range map[string]desk{"reservation of an address not in trusted-proxies refused": d, "id of a reservation not readable": other} {
		if !strings.Contains(s.log.String(), text) {
			t.Errorf("the log lacks %q:\n%s", text, s.log)
		}
	}
	if _, metrics := get(t, http.DefaultClient, d.url("auth-addr")+"/metrics"); !strings.Contains(metrics, `weir_refused_total{mode="enforced",reason="limit",rule="tokens"} 1`) {
		t.Errorf("the metrics lack the refused reservation:\n%s", metrics)
	}
}

// TestReservationClients runs the samples in Python and in JavaScript.
func TestReservationClients(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tokenLimits)
	for program, file := range map[string]string{"python3": "reserve.py", "node": "reserve.mjs"} {
		t.Run(program, func(t *testing.T) {
			path, err := exec.LookPath(program)
			if err != nil && os.Getenv("CI") == "" {
				t.Skip(program + " is not installed")
			}
			s := startService(t, "-limits", limits, "-key-secret", "0123456789abcdef")
			c := exec.Command(path, filepath.Join("clients", file))
			c.Env = append(os.Environ(), "WEIR="+s.url("auth-addr"))
			out, err := c.CombinedOutput()
			if want := "then limited: true"; err != nil || !strings.Contains(strings.ToLower(string(out)), want) {
				t.Errorf("got %v, want %q\n%s", err, want, out)
			}
		})
	}
}
