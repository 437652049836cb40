-- The queue of meter.go; the rest is meter.lua.
local function queue(s, now, at, cost, quota, period, burst)
  local unit, rate, size = ticks(quota, period, burst)
  if cost > size then return -1, false end
  local last = math.max(now, s.at)
  local debt, overdrawn = owed(s, last, unit, rate, size)
  if last == s.at and s.a < 0 and s.b == unit then debt = s.a end
  local ahead = last - now
  local over = debt + cost * unit - size * unit
  if over > 0 then return ahead + ceil_div(over, rate), false end
  if ahead * rate > -over then return ahead - math.floor(-over / rate), false end
  local wait = ahead + ceil_div(debt, rate)
  local next_at, a = math.max(now + wait, at), cost * unit
  if overdrawn then
    local new = charged(s, next_at, cost, unit, rate)
    return wait, true, next_at, new.a, new.b, rest(new, next_at, unit, rate, size)
  end
  if next_at == now + wait then a = a - ((next_at - last) * rate - debt) end
  return wait, true, next_at, a, unit, ceil_div(a, rate)
end
