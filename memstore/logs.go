package memstore

import "github.com/seed83679106/weir/quota"

// A logs value contains the logs of a shard. A slot holds the index of its log.
type logs struct {
	all  []log
	free []int64 // the indices of the logs that no slot uses
}

// A log contains the log entries of one state, if there are any, and the numbers for which the slot
// has no room.
type log struct {
	memory []quota.LogEntry // the entries, after older ones that have left the log
	left   int              // how many entries of memory have left the log
	b, c   int64            // the B and C of the state
}

// add returns the index of a log that no slot uses.
func (l *logs) add() (i int64) {
	if n := len(l.free); n > 0 {
		i, l.free = l.free[n-1], l.free[:n-1]
		return i
	}
	l.all = append(l.all, log{})
	return int64(len(l.all) - 1)
}

// drop frees a log and its memory.
func (l *logs) drop(i int64) {
	l.all[i] = log{}
	l.free = append(l.free, i)
}

// load reads the log into s.
func (l *log) load(s *quota.State) {
	s.Log, s.B, s.C = l.memory[l.left:], l.b, l.c
}

// save stores the log and the numbers of s. An algorithm appends entries at the end of the memory,
// and removes the oldest entries from the beginning of the log. When the end of the memory is
// reached and its beginning is unused, save moves the log to the start of the memory. A log whose
// length stays about the same therefore needs no new memory. If the log fills less than half or
// more than two thirds of the memory, save instead moves it to a new allocation that is one and a
// half times as long as the log.
func (l *log) save(s *quota.State) {
	n, left := len(s.Log), cap(l.memory)-cap(s.Log)
	l.b, l.c = s.B, s.C
	if n == 0 || left < 0 || &l.memory[:cap(l.memory)][left] != &s.Log[0] { // the log is in new memory
		l.memory, l.left = s.Log, 0
		return
	}
	l.memory, l.left = l.memory[:left+n], left
	room := cap(l.memory)
	if left == 0 || left+n < room {
		return
	}
	if n*2 < room || n*3 > room*2 {
		l.memory = make([]quota.LogEntry, n, n+n/2+1)
	}
	l.memory, l.left = l.memory[:copy(l.memory, s.Log)], 0
}
