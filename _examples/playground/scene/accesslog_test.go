package scene

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestAccessLogBounded: of a log that is too long, the first MaxLines lines count, and the report
// says that there are more.
func TestAccessLogBounded(t *testing.T) {
	const line = "192.0.2.1 - - [25/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n"
	for _, lines := range []int64{MaxLines, MaxLines + 500} {
		a := NewAccessLog("fixed-window", "quota=5000&period=3600", []byte(strings.Repeat(line, int(lines))), false)
		for more := true; more; {
			_, more = a.Step(1000)
		}
		var got Replayed
		if err := json.Unmarshal(a.Report(), &got); err != nil {
			t.Fatal(err)
		}
		if got.Error != "" || got.Requests != MaxLines || got.Refused != MaxLines-5000 || got.Cut != (lines > MaxLines) {
			t.Errorf("%d lines: got %+v", lines, got)
		}
	}
}
