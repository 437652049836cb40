package sparse

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLogger: 1,000 lines in 10 s are 10 lines, also through loggers with attributes, and
// each of them says how many were left out before it.
func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := Logger(slog.New(slog.NewTextHandler(&out, nil)))
		other := log.With("a", 1)
		for i := range 1000 {
			if i%2 == 0 {
				log.Warn("no")
			} else {
				other.Warn("no")
			}
			time.Sleep(10 * time.Millisecond)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 10 || strings.Contains(lines[0], "unlogged") || fmt.Sprint(strings.Count(out.String(), "unlogged=99")) != "9" {
			t.Errorf("got %d lines, want 10, 9 of them with unlogged=99:\n%s", len(lines), out.String())
		}
	})
}
