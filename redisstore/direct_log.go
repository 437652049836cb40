package redisstore

import (
	"strconv"
	"strings"

	"github.com/seed83679106/weir"
)

// logScript is for limits that share a log. The header of the list ends in "#",
// when the newest unit was spent, and for each limit how many of the newest
// units were in its window then. Those that have left it since are found from
// there, mostly by one look, and what is not needed for the decision is not
// looked at. Last stands "&" and the period of each: a list that holds units for
// longer, because it was charged under another period, is left to the general script.
//
// The reply is the time, whether the unit was spent, when the newest was before,
// and for each limit how many were in its window, and when the oldest of them was
// spent. That is all that an explanation asks for where no limit is exceeded.
func logScript(charges []weir.Charge, header string) script {
	b := lua{charges: charges}
	line, each := b.line, b.each
	longest := 0
	for i := range charges {
		if charges[i].Limit.Period > charges[longest].Limit.Period {
			longest = i
		}
	}
	period := func(i int) int64 { return charges[i].Limit.Period.Microseconds() }

	periods := make([]string, len(charges))
	for i := range charges {
		periods[i] = strconv.FormatInt(period(i), 10)
	}

	line("local call = redis.call")
	line("local t = call('TIME')")
	line("local now = t[1] * 1000000 + t[2]")
	line("local key = KEYS[1]")
	line("local header = call('LINDEX', key, -1)")
	line("local last, at = 0, now")
	line("local %s = %s", each("n%d", ", "), each("0", ", "))
	line("local %s = %s", each("o%d", ", "), each("0", ", "))
	line("if header then")
	line("last, %s = string.match(header, %q)", each("n%d", ", "), "^"+quotePattern(header)+"#(%d+)"+strings.Repeat(" (%d+)", len(charges))+"&"+strings.Join(periods, " ")+"$")
	line("if not last then return 0 end")
	line("last = last + 0")
	line("if last > now then at = last end")
	for i := range charges {
		line("n%d = n%[1]d + 0", i)
		line("if n%d > 0 then", i)
		line("local old = at - %d", period(i))
		line("o%d = call('LINDEX', key, n%[1]d - 1)", i)
		line("if o%d + 0 <= old then", i)
		line("local from, to, step = 0, n%d, 1", i)
		line("while to - from > 1 do")
		line("local k = to - step")
		line("if k <= from then k = math.floor((from + to) / 2) end")
		line("local o = call('LINDEX', key, k - 1)")
		line("if o + 0 > old then from, step, o%d = k, to, o else to, step = k, 2 * step end", i)
		line("end")
		line("n%d = from", i)
		line("end")
		line("end")
		line("if n%d > %d then return 0 end", i, charges[i].Limit.Quota)
	}
	line("end")
	found := each("n%d, o%d", ", ")
	full := make([]string, len(charges))
	for i := range charges {
		full[i] = "n" + strconv.Itoa(i) + " == " + strconv.FormatInt(charges[i].Limit.Quota, 10)
	}
	line("if at > now or %s then return {t[1], t[2], 0, last, %s} end", strings.Join(full, " or "), found)
	line("local text = string.format(%q, now, %s)", strings.ReplaceAll(header, "%", "%%")+"#%.0f"+strings.Repeat(" %.0f", len(charges))+"&"+strings.Join(periods, " "), each("n%d + 1", ", "))
	line("if header then")
	line("local len = call('LPUSH', key, string.format('%%.0f', now))")
	line("if len - n%d > 18 + n%[1]d / 16 then", longest)
	line("call('LTRIM', key, 0, n%d)", longest)
	line("call('RPUSH', key, text)")
	line("else")
	line("call('LSET', key, -1, text)")
	line("end")
	line("else")
	line("call('RPUSH', key, string.format('%%.0f', now), text)")
	line("end")
	line("call('PEXPIRE', key, %d)", (period(longest)+999)/1000+1)
	line("return {t[1], t[2], 1, last, %s}", found)
	return named(b.String())
}

// quotePattern has a Lua pattern match s as it is.
func quotePattern(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte("^$()%.[]*+-?", s[i]) >= 0 {
			b.WriteByte('%')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseLogs reads what a logScript found, from the newest unit on.
func parseLogs(found []any, states []weir.State) (ok bool) {
	last, ok := found[0].(int64)
	if !ok {
		return false // it is the instant of the newest unit
	}
	for i := range states {
		n, ok := found[1+2*i].(int64)
		if !ok || n == 0 {
			continue
		}
		oldest, err := number(found[2+2*i])
		if err != nil {
			return false
		}
		states[i].Log = []weir.LogEntry{{At: oldest, Sum: 1}}
		if n > 1 {
			states[i].Log = append(states[i].Log, weir.LogEntry{At: last, Sum: n})
		}
	}
	for i := range states {
		states[i].At = last
	}
	return true
}
