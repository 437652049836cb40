package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestAlertTable: the table of docs/metrics.md has the alerts of rules.yaml, in their order, with
// the time that each waits, and the page names those that page somebody.
func TestAlertTable(t *testing.T) {
	minutes := map[string]string{"": "", "1m": "for 1 minute, ", "2m": "for 2 minutes, ", "5m": "for 5 minutes, ", "10m": "for 10 minutes, "}
	waits, page := regexp.MustCompile(`\n        for: (\w+)`), read(t, "docs/metrics.md")
	var names, paging []string
	for _, alert := range strings.Split(read(t, "ops/weirprom/rules.yaml"), "\n      - alert: ")[1:] {
		name := regexp.MustCompile(`^\w+`).FindString(alert)
		names = append(names, name)
		if strings.Contains(alert, "severity: page") {
			paging = append(paging, name)
		}
		wait := ""
		if m := waits.FindStringSubmatch(alert); m != nil {
			wait = m[1]
		}
		_, row, found := strings.Cut(page, "\n| `"+name+"` | ")
		begin, known := minutes[wait]
		if row, _, _ = strings.Cut(row, " | "); !found || !known || !strings.HasPrefix(row, begin) || begin == "" && strings.HasPrefix(row, "for ") {
			t.Errorf("%s waits %q; got the row %q", name, wait, row)
		}
	}
	var rows []string
	for _, m := range regexp.MustCompile("\n\\| `(Weir[A-Z]\\w+)` \\|").FindAllStringSubmatch(page, -1) {
		rows = append(rows, m[1])
	}
	if !slices.Equal(rows, names) || len(names) < 10 {
		t.Errorf("got rows for %q, want %q", rows, names)
	}
	last := len(paging) - 1
	if want := "`" + strings.Join(paging[:last], "`, `") + "` and `" + paging[last] + "` have `severity: page`"; !strings.Contains(page, want) {
		t.Errorf("docs/metrics.md does not say: %s", want)
	}
}
