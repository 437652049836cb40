-- queue is meter.queue of meter.go. This text follows meter.lua, because queue calls
-- functions of that file.
local function queue(at, a, b, till, now, turn, cost, unit, rate, full, edges, c)
  if cost * unit > full then return -1, false end
  local last = math.max(now, at)
  local debt, overdrawn, forced = owed(at, a, b, last, unit, rate, full, c)
  local ahead = last - now
  local over = debt + cost * unit - full
  if over > 0 then return ahead + (over + -over % rate) / rate, false end
  if ahead * rate > -over then return ahead - math.floor(-over / rate), false end
  local wait = ahead + math.floor(debt / rate)
  turn = math.max(now + wait, turn)
  if overdrawn then return wait, true, select(2, take(at, a, b, till, turn, cost, unit, rate, full, edges, c)) end
  local drained = (turn - last) * rate
  local owes = math.max(0, debt - drained) + cost * unit
  return wait, true, turn, owes, unit, turn + (owes + -owes % rate) / rate, math.max(0, math.min(owes, forced - drained))
end
