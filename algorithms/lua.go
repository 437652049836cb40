package algorithms

import _ "embed"

// These texts are the same arithmetic in Lua, for stores that decide in Redis: see
// redisstore.Scripted. The Lua of a meter gets the three numbers that Meter returns, in
// place of quota, period and burst.
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
	//go:embed inflight.lua
	inFlightLua string
)

func (fixedWindow) Lua() string    { return windowLua + fixedLua }
func (anchoredWindow) Lua() string { return windowLua + anchoredLua }
func (calendar) Lua() string       { return windowLua + calendarLua }
func (slidingWindow) Lua() string  { return slidingLua }
func (slidingLog) Lua() string     { return logLua }
func (inFlight) Lua() string       { return logLua + inFlightLua }

// All algorithms of this package are additive: if several charges come at one instant, the
// state after them depends only on the sum of their costs. See redisstore.Additive.
func (bucket) Additive()         {}
func (fixedWindow) Additive()    {}
func (anchoredWindow) Additive() {}
func (calendar) Additive()       {}
func (slidingWindow) Additive()  {}
func (slidingLog) Additive()     {}

// Logged tells stores that the states of SlidingLog are logs: see redisstore.Logged.
func (slidingLog) Logged() {}
