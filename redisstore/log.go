package redisstore

import (
	"slices"

	"github.com/seed83679106/weir"
)

// parseLog reads at, until, and pairs of a sum and an instant. That is not all of a log
// but all that its arithmetic will ask for: the newest instant, and some marks, in any
// order and some of them twice.
func parseLog(list []int64) (s weir.State, ok bool) {
	if len(list) == 0 {
		return s, true
	}
	if len(list)%2 != 0 {
		return s, false
	}
	s.At, s.Until = list[0], list[1]
	for i := 2; i < len(list); i += 2 {
		s.Log = append(s.Log, weir.LogEntry{Sum: list[i], At: list[i+1]})
	}
	slices.SortFunc(s.Log, func(a, b weir.LogEntry) int { return int(a.Sum - b.Sum) })
	s.Log = slices.Compact(s.Log)
	return s, true
}
