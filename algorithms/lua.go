package algorithms

import _ "embed"

// The same arithmetic in Lua, for stores that decide in Redis. Each script
// defines
//
//	take(s, at, cost, quota, period, burst, edges)
//
// for a state s of numbers at, a and b, an instant at ≥ s.at and a cost other
// than 0. It returns the µs until the cost fits, or −1 for never, and where that
// is 0 the numbers a and b of the next state, the µs from at until it is as good as
// new, and, if a gift leaves that state at another instant than at, that instant.
// The script of the leaky bucket defines queue besides; that of the sliding log
// works on a list, which the script of the transaction opens and writes.
var (
	//go:embed meter.lua
	meterLua string
	//go:embed leakybucket.lua
	queueLua string
	//go:embed window.lua
	windowLua string
	//go:embed fixedwindow.lua
	fixedLua string
	//go:embed anchoredwindow.lua
	anchoredLua string
	//go:embed calendar.lua
	calendarLua string
	//go:embed slidingwindow.lua
	slidingLua string
	//go:embed slidinglog.lua
	logLua string
)

func (gcra) Lua() string           { return meterLua }
func (tokenBucket) Lua() string    { return meterLua }
func (leakyBucket) Lua() string    { return meterLua + queueLua }
func (fixedWindow) Lua() string    { return windowLua + fixedLua }
func (anchoredWindow) Lua() string { return windowLua + anchoredLua }
func (calendar) Lua() string       { return windowLua + calendarLua }
func (slidingWindow) Lua() string  { return slidingLua }
func (slidingLog) Lua() string     { return logLua }
