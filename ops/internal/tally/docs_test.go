package tally_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/ops/internal/tally"
)

// TestDocumented: ops/weirprom/METRICS.md has a row for each metric, in the order of the table,
// with its labels, and with its help at the beginning of the last column; a row for each label; and
// no other rows. The queries of docs/metrics.md use no other metrics.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../weirprom/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	queries, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	var rows [][]string // the cells of the rows
	for _, row := range regexp.MustCompile("(?m)^\\| `weir_.*\\|$").FindAllString(page, -1) {
		cells := strings.Split(strings.ReplaceAll(strings.Trim(row, "|"), "`", ""), "|")
		for i, cell := range cells {
			cells[i] = strings.TrimSpace(cell)
		}
		rows = append(rows, cells)
	}
	metrics := append(tally.New().Metrics(), tally.FileMetrics[weir.Rule](nil)...)
	names, labels := map[string]bool{}, []string{}
	ofServe := []string{"weir_build_info", "weir_ready_memory_total", "weir_auth_rejected_total"}
	for i, m := range metrics {
		names[m.Name], labels = true, append(labels, m.Labels...)
		want := []string{m.Name, m.Otel, m.Kind, strings.Join(m.Labels, ", "), m.Help}
		if i >= len(rows) {
			t.Errorf("no row for %q", want)
		} else if row := rows[i]; len(row) != 5 || !slices.Equal(row[:4], want[:4]) || !strings.HasPrefix(row[4], m.Help) {
			t.Errorf("row %d: got\n%q, want\n%q", i+1, row, want)
		}
	}
	if len(rows) > len(metrics) {
		t.Errorf("there is no metric for %q", rows[len(metrics):])
	}
	for _, name := range regexp.MustCompile(`weir_\w+`).FindAllString(page+string(queries), -1) {
		if !names[strings.TrimSuffix(name, "_bucket")] && !strings.HasPrefix(name, "weir_redis_") && !slices.Contains(ofServe, name) { // of go-redis
			t.Errorf("there is no metric %s", name)
		}
	}
	_, section, _ := strings.Cut(page, "| label | value |")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := []string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, row[1])
	}
	slices.Sort(documented)
	slices.Sort(labels)
	if labels = slices.Compact(labels); !slices.Equal(documented, labels) {
		t.Errorf("got rows for the labels %q, want %q", documented, labels)
	}
}
