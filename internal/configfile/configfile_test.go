package configfile

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"limit", "period", "burst", ""}
	for _, tt := range []struct {
		name string
		most int
		want string
	}{
		{"limt", 1, "limit"}, {"limits", 1, "limit"}, {"lmiit", 1, "limit"}, {"PERID", 2, "period"}, {"limit", 0, "limit"},
		{"lmt", 1, ""}, {"window", 3, ""}, {"x", 1, ""}, {"", 0, ""},
	} {
		if got := Nearest(tt.name, known, tt.most); got != tt.want {
			t.Errorf("Nearest(%q, %d) = %q, want %q", tt.name, tt.most, got, tt.want)
		}
	}
}
