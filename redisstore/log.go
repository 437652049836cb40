package redisstore

import "strings"

// directLogs writes the lines that decide what n limits of one log are charged, all the
// same and now or never, for a key never seen or a log that holds just their units. They
// know the format of slidinglog.lua, and leave to it what happens once in a block of
// entries: that one is full or begins to be old. The arguments are those of lua.direct.
func (b *lua) directLogs(n int) {
	numbers := strings.Repeat("ddd", n)
	known := each(n, "k#, s#, f#, u#, b#", ", ")
	marks := each(n, "6, at, 0, 1, f#, s#, last", ", ")
	b.line("if ARGV[2] ~= '' then")
	b.line("local longest, cost, %s = struct.unpack('<dd%s', ARGV[2])", each(n, "x#, y#, z#", ", "), numbers)
	b.line("local ids, key, call = ARGV[1], KEYS[1], redis.call")
	b.line("local text, size = call('HGET', key, 'h'), #ids")
	b.line("local keep, slack = math.max(%s)", each(n, "y#", ", "))
	b.line("slack = math.ceil(keep / 8)") // so that not every charge need put it off
	b.line("repeat")
	b.line("if not text then")
	b.line("if %s then break end", each(n, "cost > x#", " or "))
	b.line("if cost >= 2 ^ 32 then break end")
	b.line("call('HSET', key, 'h', struct.pack('<c0I4ddI4I4I4%sc0ddI5I4', ids, 1, now, now + keep + slack, 1, 0, 26, %s, 'n', now, 0, 0, cost))",
		strings.Repeat("ddddI4", n), each(n, "y#, cost, now, 0, 1", ", "))
	b.line("call('PEXPIRE', key, math.ceil((keep + slack) / 1000) + 1)")
	b.line("return struct.pack('<dd%s', now, 1, %s)", strings.Repeat("d", n), each(n, "0", ", "))
	b.line("end")
	b.line("if string.find(text, ids, 1, true) ~= 1 then break end")
	b.line("local no, at, expires, low, high, len, %s = struct.unpack('<I4ddI4I4I4%s', text, size + 1)", known, strings.Repeat("ddddI4", n))
	b.line("local from = size + %d", 33+36*n)
	b.line("if at > now or #text ~= from + len - 1 or string.byte(text, from) ~= 110 or %s then break end", each(n, "k# ~= y#", " or "))
	b.line("if %s then break end", each(n, "low < b#", " and ")) // blocks are to be deleted
	b.line("local base = struct.unpack('<d', text, from + 1)")
	b.line("local after, sum = struct.unpack('<I5I4', text, #text - 8)")
	b.line("local last = base + after")
	b.line("local function leave(b, u, s, old)") // what is not after old; a new first unit is in the same block
	b.line("local t, first, begin = text, from + 17, base")
	b.line("if b <= high then")
	b.line("t, first = call('HGET', key, string.format('%%.0f:%%.0f', no, b)), 18")
	b.line("if not t or string.byte(t) ~= 110 then return end")
	b.line("begin = struct.unpack('<d', t, 2)")
	b.line("end")
	b.line("local lo, hi, gone, time = 0, math.floor((#t - first + 1) / 9) + 1, u")
	b.line("while hi - lo > 1 do")
	b.line("local mid = math.floor((lo + hi) / 2)")
	b.line("local e, n = struct.unpack('<I5I4', t, first + 9 * mid - 9)")
	b.line("if n <= u or begin + e <= old then lo, gone = mid, n else hi, time = mid, begin + e end")
	b.line("end")
	b.line("if time and gone >= u then return gone, s - gone + u, time end")
	b.line("end")
	for i := range n {
		b.line(numbered(i, "if f# <= now - y# then u#, s#, f# = leave(b#, u#, s#, now - y#) end"))
		b.line(numbered(i, "if not u# then break end"))
	}
	b.line("if %s then break end", each(n, "s# + cost > x# + 1", " or "))
	b.line("if %s then", each(n, "s# + cost > x#", " or "))
	b.line("if longest > 0 then break end")
	b.line("return struct.pack('<dd%s', now, 0, %s)", strings.Repeat("ddddddd", n), marks)
	b.line("end")
	b.line("if now - base >= 2 ^ 40 or sum + cost >= 2 ^ 32 then break end")
	b.line("local till, size = #text, len + 9")
	b.line("if last == now then till, size = till - 9, len elseif len >= %d then break end", 17+64*9)
	b.line("if expires < now + keep then")
	b.line("expires = now + keep + slack")
	b.line("call('PEXPIRE', key, math.ceil((keep + slack) / 1000) + 1)")
	b.line("end")
	b.line("call('HSET', key, 'h', struct.pack('<c0I4ddI4I4I4%sc0I5I4', ids, no, now, expires, low, high, size, %s, string.sub(text, from, till), now - base, sum + cost))",
		strings.Repeat("ddddI4", n), each(n, "k#, s# + cost, f#, u#, b#", ", "))
	b.line("return struct.pack('<dd%s', now, 1, %s)", strings.Repeat("ddddddd", n), marks)
	b.line("until true")
	b.line("rows, within, delay, times, edges_from = {%s}, longest, 0, 1, 3", each(n, "{1, 1, cost, x#, y#, z#}", ", "))
	b.line("end")
}
