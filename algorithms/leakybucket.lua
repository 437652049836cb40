-- queue is meter.queue of meter.go. This text follows meter.lua, because queue calls
-- functions of that file.
local function queue(at, a, b, till, now, turn, cost, unit, rate, full)
  if cost * unit > full then return -1, false end
  local last = math.max(now, at)
  local debt, overdrawn = owed(at, a, b, last, unit, rate, full)
  if last == at and a < 0 and b == unit then debt = a end
  local ahead = last - now
  local over = debt + cost * unit - full
  if over > 0 then return ahead + (over + -over % rate) / rate, false end
  if ahead * rate > -over then return ahead - math.floor(-over / rate), false end
  local wait = ahead
  if debt > 0 then wait = ahead + (debt + -debt % rate) / rate end
  turn = math.max(now + wait, turn)
  if overdrawn then return wait, true, select(2, take(at, a, b, till, turn, cost, unit, rate, full)) end
  local owes = cost * unit
  if turn == now + wait then owes = owes - ((turn - last) * rate - debt) end
  return wait, true, turn, owes, unit, turn + (owes + -owes % rate) / rate
end
