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

// TestRounded: three digits are enough to read, whatever the unit.
func TestRounded(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 123: "123ns", 123456: "123µs", 1_234_567: "1.23ms", 1_234_567_890: "1.23s", 62_543_210_000: "1m2.5s",
		-1_234_567_890: "-1.23s", 3*time.Hour + 25*time.Minute + 44*time.Second: "3h25m44s", 1<<63 - 1: "2562047h47m16.854775807s", // which cannot be rounded
	} {
		if got := Rounded(d); got != want {
			t.Errorf("Rounded(%d): got %q, want %q", d, got, want)
		}
	}
}

// TestSeconds: seconds are rounded up.
func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, -time.Second: 0, time.Minute - 1: 60} {
		if got := Seconds(d); got != want {
			t.Errorf("Seconds(%v): got %d, want %d", d, got, want)
		}
	}
}
