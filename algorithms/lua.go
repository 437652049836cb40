package algorithms

import (
	_ "embed"
	"strings"
)

// Stores that make decisions in Redis do the same arithmetic with these Lua scripts: see
// redisstore.Scripted.
var (
	//go:embed muldiv.lua
	mulDivLua string
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

func (bucket) Lua() string         { return mulDivLua + meterLua }
func (leakyBucket) Lua() string    { return mulDivLua + meterLua + queueLua }
func (fixedWindow) Lua() string    { return windowLua + fixedLua }
func (anchoredWindow) Lua() string { return windowLua + anchoredLua }
func (calendar) Lua() string       { return windowLua + calendarLua }
func (slidingWindow) Lua() string  { return mulDivLua + slidingLua }
func (slidingLog) Lua() string     { return logLua }
func (inFlight) Lua() string       { return logLua + inFlightLua }

// Inline returns the lines of take that package redisstore inserts instead of calling take: see
// meter.lua.
func (bucket) Inline() string {
	_, lua, _ := strings.Cut(meterLua, "-- inline\n")
	lua, _, _ = strings.Cut(lua, "-- end\n")
	return lua
}

// All algorithms of this package are additive: after several charges at the same instant,
// the state depends only on the sum of their costs. See redisstore.Scripted.
func (bucket) Additive()     {}
func (slidingLog) Additive() {}

// Logged tells package redisstore that the states of SlidingLog are logs.
func (slidingLog) Logged() {}
