package period

import (
	"testing"
	"time"
)

// TestName: a period is named in its largest whole unit, and no name is longer than Size.
func TestName(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"1m": time.Minute, "3s": 3 * time.Second, "1d": 24 * time.Hour, "36h": 36 * time.Hour, "90s": 90 * time.Second,
		"1500ms": 1500 * time.Millisecond, "250us": 250 * time.Microsecond, "1us": time.Microsecond,
		"9223372036854775us": 1<<63 - 1,
	} {
		if got := Name(d); got != want || len(got) > Size {
			t.Errorf("Name(%v): got %q, want %q, of at most %d bytes", d, got, want, Size)
		}
	}
}
