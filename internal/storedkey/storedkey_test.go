package storedkey_test

import (
	"strings"
	"testing"

	"github.com/seed83679106/weir/internal/storedkey"
)

// TestOf: keys of up to 128 bytes are stored unchanged and without an allocation, longer
// keys are stored as a digest, and a stored key stays the same.
func TestOf(t *testing.T) {
	for _, tt := range []struct{ key, want string }{
		{"", ""},
		{"192.0.2.1", "192.0.2.1"},
		{strings.Repeat("x", 128), strings.Repeat("x", 128)},
		// printf 'x%.0s' $(seq 129) | openssl dgst -sha256 -binary | basenc --base64url
		{strings.Repeat("x", 129), "sha256:DsnrM-dFELzdHy6lUgboLyFknFwr7L8rQz60dbNMAb0"},
		{strings.Repeat("a", 1e6), "sha256:zcduXJkU-5KBocfihNc-Z_GAmkiklyAOBG05zMcRLNA"}, // FIPS 180-2, appendix B.3
	} {
		got := storedkey.Of(tt.key)
		if got != tt.want {
			t.Errorf("%d bytes of %.1q: got %q, want %q", len(tt.key), tt.key, got, tt.want)
		}
		if again := storedkey.Of(got); again != got {
			t.Errorf("%d bytes of %.1q: stored again %q, want %q", len(tt.key), tt.key, again, got)
		}
	}
	if n := testing.AllocsPerRun(100, func() { storedkey.Of("192.0.2.1") }); n > 0 {
		t.Errorf("a short key: %v allocations, want 0", n)
	}
}
