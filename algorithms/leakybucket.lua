-- queue is meter.queue of meter.go. In a script, meter.lua precedes this text, because queue calls
-- its functions.
local function queue(at, a, b, till, now, slot, cost, quota, period, burst, edges, c)
  local size, slack = burst > 0 and burst or quota, math.min(quota, period) - 1
  if cost > size then return -1, false end
  local last = math.max(now, at)
  local _, _, counts, part = debtAt(at, a, b, last, quota, period, burst, c)
  local ahead, room, rest = last - now, size - counts - cost, slack - part
  if rest < 0 then room, rest = room - 1, rest + period end
  if room < 0 then return ahead + drain_time(counts + cost - size, part - slack, quota, period), false end
  local gone, back = drained(ahead, quota, period)
  if gone > room or gone == room and back > rest then
    return ahead - drain_time(room, rest - quota + 1, quota, period), false
  end
  ahead = ahead + drain_time(counts, part - quota + 1, quota, period)
  slot = math.max(now + ahead, slot)
  a, b, _, _, c = debtAt(at, a, b, slot, quota, period, burst, c)
  return ahead, true, slot, a + cost, b, slot + drain_time(a + cost, b, quota, period), c
end
