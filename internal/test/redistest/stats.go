package redistest

import (
	"regexp"
	"strconv"
)

// A CommandStat says how often a server has run a command, and how many µs that took.
type CommandStat struct{ Calls, Micros int }

var commandStat = regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+),usec=(\d+)`)

// CommandStats reads the answer to INFO commandstats. A key of the map is the name of a
// command, such as "evalsha" or "config|resetstat".
func CommandStats(info string) map[string]CommandStat {
	stats := map[string]CommandStat{}
	for _, m := range commandStat.FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.Atoi(m[2])
		micros, _ := strconv.Atoi(m[3])
		stats[m[1]] = CommandStat{calls, micros}
	}
	return stats
}
