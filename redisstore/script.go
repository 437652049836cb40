package redisstore

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/seed83679106/weir"
)

// Scripted is what an algorithm needs besides weir.Algorithm to be decided in
// Redis. Its Lua must be the same function as its Take, bit for bit: it defines
//
//	local function take(s, at, cost, quota, period, burst)
//
// for a state s with the numbers s.at, s.a and s.b, an instant at ≥ s.at in µs
// and a cost other than 0; period is in µs. take returns how many µs later the
// cost fits, or −1 for never, and if that is 0 the next a and b, the µs from at
// until the state is as good as new, and the next s.at if a negative cost leaves it
// at another instant than at. Numbers are float64: integers below 2^53 are exact.
// If the text reads s.till, that is Until of the state, or 0; else it is not kept.
type Scripted interface {
	Lua() string
}

// Edged is a Scripted algorithm whose windows a script can't compute. Edges
// returns where windows begin, in µs since 1970 and in order, from before the
// instant at to well after it.
type Edged interface {
	Edges(at int64) []int64
}

// A TTL counts from the millisecond in which the script began, not from now.
const prelude = `
local algorithms = {}
local open_logs, describe_log, spend_logs
local function ms(us) return math.ceil(us / 1000) + 1 end
`

var (
	//go:embed single.lua
	single string
	//go:embed driver.lua
	driver string
)

// A script is a text and the name by which Redis knows it.
type script struct {
	text, sha string
}

// newScript puts together the script for transactions of these algorithms. A
// text that has just those runs faster than one that has all.
func newScript(algorithms []weir.Algorithm) (script, error) {
	var b strings.Builder
	b.WriteString(prelude)
	for i, a := range algorithms {
		s, ok := a.(Scripted)
		if !ok {
			return script{}, fmt.Errorf("redisstore: algorithm %q has no Lua, so Redis can't run it, see Scripted: %w", a.Name(), errors.ErrUnsupported)
		}
		fields := "take = take"
		if _, ok := a.(weir.Canceler); ok {
			fields += ", cancel = cancel"
		}
		if _, ok := a.(weir.Queuer); ok {
			fields += ", queue = queue"
		}
		source := s.Lua()
		if strings.Contains(source, "s.till") {
			fields += ", till = true"
		}
		if isLog(a) {
			fields += ", log = true"
			for _, f := range []string{"open_logs", "describe_log", "spend_logs"} {
				source = strings.Replace(source, "local function "+f+"(", "function "+f+"(", 1)
			}
		}
		fmt.Fprintf(&b, "do\n%s\nalgorithms[%d] = {%s}\nend\n", source, i+1, fields)
	}
	b.WriteString(single)
	b.WriteString(driver)
	return named(b.String()), nil
}

// isLog reports whether the states of an algorithm are logs, which take a list.
func isLog(a weir.Algorithm) bool { return a.Name() == "sliding-log" }
