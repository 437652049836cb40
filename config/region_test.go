package config

import (
	"net/http/httptest"
	"testing"
)

// TestRegions: if the first part of a key is the region, overrides give each region a limit
// of its own. A region without an override has the limit of the rule.
func TestRegions(t *testing.T) {
	h := newPage(t, `
limits:
- name: api
  key: [header:X-Region, ip]
  config: [{limit: 1, period: 1h}]
  overrides: [{value: us, config: [{limit: 3}]}]
`, Options{}).Handler("api")(ok)
	for region, want := range map[string]int{"eu": 1, "us": 3, "ap": 1} {
		admitted := 0
		for range 5 {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X-Region", region)
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code == 200 {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%s: got %d, want %d", region, admitted, want)
		}
	}
}
