package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReservationAfterReload: between a reservation, its draws and its settlement, limits may come, go and
// change places. Each limit gets back what was spent under it.
func TestReservationAfterReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	version := 0
	write := func(limits string) {
		version++
		text := fmt.Sprintf("trusted-proxies: [127.0.0.1]\nlimits:\n  - {name: tokens, key: header:X-Tenant, algorithm: sliding-log, config: [%s]}\n  - {name: v%d, key: header:X-Tenant, config: [{limit: 1, period: 1h}]}\n", limits, version)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hour, day := "{limit: 100, period: 1h}", "{limit: 200, period: 24h}"
	write(hour)
	d := desk{t, startService(t, "-limits", path, "-key-secret", "0123456789abcdef")}
	reload := func(limits string) {
		write(limits)
		eventually(t, "reload", func() bool {
			status, _, _ := d.call("/reserve", fmt.Sprintf(`{"rule": "v%d", "key": "a", "units": 1}`, version))
			return status == http.StatusOK
		})
	}
	for i, c := range []struct{ before, after string }{{hour, hour + ", " + day}, {hour + ", " + day, hour}, {hour + ", " + day, day + ", " + hour}} {
		key := fmt.Sprint("acme", i)
		reload(c.before)
		id := d.reserve("tokens", key, 60)
		reload(c.after)
		id = d.take("/draw", fmt.Sprintf(`{"id": %q, "units": 30}`, id))
		d.settle(id, 10, true)
		d.left("tokens", key, 90)
	}
}

// TestReservationAfterAlgorithm: if the algorithm of a limit has changed since a reservation, a settlement
// returns nothing to the new one, which has not spent the units.
func TestReservationAfterAlgorithm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	const text = `trusted-proxies: [127.0.0.1]
limits:
  - {name: tokens, key: header:X-Tenant, algorithm: %s, config: [{limit: 100, period: 100h}]}
  - {name: %[1]s, key: global, config: [{limit: 1, period: 1h}]}
`
	writeFile(t, path, fmt.Sprintf(text, "sliding-log"))
	d := desk{t, startService(t, "-limits", path, "-key-secret", "0123456789abcdef")}
	old := d.reserve("tokens", "acme", 60)
	writeFile(t, path, fmt.Sprintf(text, "fixed-window"))
	eventually(t, "reload", func() bool {
		status, _, _ := d.call("/reserve", `{"rule": "fixed-window", "key": "", "units": 1}`)
		return status == http.StatusOK
	})
	d.reserve("tokens", "acme", 70)
	d.settle(old, 0, true)
	d.left("tokens", "acme", 30)
}

// TestReservationClass: the class is in the id, so a class that would make the id too long to settle is refused.
func TestReservationClass(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tokenLimits)
	d := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdef")}
	reserve := `{"rule": "classes", "key": "long", "class": %q, "units": 6}`
	if status, _, text := d.call("/reserve", fmt.Sprintf(reserve, strings.Repeat("x", 60_000))); status != http.StatusBadRequest {
		t.Errorf("a class of 60 KB: got %d %.100s, want 400", status, text)
	}
	d.settle(d.take("/reserve", fmt.Sprintf(reserve, strings.Repeat("x", 128))), 1, true)
	d.left("classes", "long", 9)
}
