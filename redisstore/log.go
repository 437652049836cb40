package redisstore

import (
	"slices"
	"strconv"
	"strings"

	"github.com/seed83679106/weir"
)

// parseLog parses "at sum:time sum:time", or "at~until …", which is not all of a log but all
// that its arithmetic will ask for: the newest instant, and some marks, in any
// order and some of them twice.
func parseLog(text string) (s weir.State, ok bool) {
	var err error
	at, marks, _ := strings.Cut(text, " ")
	at, until, has := strings.Cut(at, "~")
	if s.At, err = strconv.ParseInt(at, 10, 64); err == nil && has {
		s.Until, err = strconv.ParseInt(until, 10, 64)
	}
	if err != nil {
		return weir.State{}, false
	}
	for mark := range strings.FieldsSeq(marks) {
		sum, time, _ := strings.Cut(mark, ":")
		var m weir.LogEntry
		if m.Sum, err = strconv.ParseInt(sum, 10, 64); err != nil {
			return weir.State{}, false
		}
		if m.At, err = strconv.ParseInt(time, 10, 64); err != nil {
			return weir.State{}, false
		}
		s.Log = append(s.Log, m)
	}
	slices.SortFunc(s.Log, func(a, b weir.LogEntry) int { return int(a.Sum - b.Sum) })
	s.Log = slices.Compact(s.Log)
	return s, true
}
