-- The arithmetic of meter.go. A unit is worth `unit` ticks, `rate` ticks drain in a µs, and
-- at most `full` ticks may be owed. Every number is an integer below 2^53, except products
-- that are only compared with a smaller number. (x + -x % y) / y is ⌈x/y⌉.
local owed -- defined below cancel, because take does not call it: see takeOnly in redisstore

-- copy take
local function take(at, a, b, till, now, cost, unit, rate, full)
  local debt = a
  if debt > 0 then
    if b ~= unit then debt = b < 1 and full or (debt + -debt % b) / b * unit end
    if debt > full then -- overdue: see overdue.go
      local most = 1125899906842624 -- 2^50
      -- The debt drains in steps. A step is `mine` ticks of this limit and `its` ticks of
      -- the debt.
      local owes, mine, its = math.min(a, most), unit, b
      if its == mine then mine, its = 1, 1 end
      local drained = math.floor(math.min((now - at) * rate, 4503599627370496) / mine) * its
      if cost < 0 then
        if -cost >= (owes + -owes % b) / b then return 0, now, 0, unit, now end
      else
        if cost * unit > full then return -1 end
        local over = math.max(0, full - (now - at) * rate) + cost * unit - full
        if over > 0 then return (over + -over % rate) / rate end
        at, owes, drained = now, owes - drained, 0
        if owes <= 0 then owes, b = 0, unit end
      end
      owes = owes + cost * b
      local left = b == unit and owes or (owes + -owes % b) / b * unit
      if left > full then
        left = math.max(0, math.min(owes, most) - drained)
        if b ~= unit then left = (left + -left % b) / b * unit end
        if left >= 9007199254740992 then return 0, at, owes, b, now + most end
      else
        left = math.max(0, left - (now - at) * rate)
      end
      return 0, at, owes, b, now + math.min((left + -left % rate) / rate, most)
    end
    debt = debt - (now - at) * rate
  end
  if debt < 0 then debt = 0 end
  debt = debt + cost * unit
  if debt > full then
    if cost * unit > full then return -1 end
    debt = debt - full
    return (debt + -debt % rate) / rate
  end
  if debt < 0 then debt = 0 end
  return 0, now, debt, unit, now + (debt + -debt % rate) / rate
end

local function cancel(at, a, b, till, now, of, n, unit, rate, full)
  if of > at or a <= 0 and of < now then return end
  local last = math.max(now, at)
  local debt, over = owed(at, a, b, last, unit, rate, full)
  if over then
    if of ~= at or of < now then return end
    return select(2, take(at, a, b, till, of, -n, unit, rate, full))
  end
  local back = math.min(n * unit, full)
  local drained = (last - of) * rate
  local alone = of == at and of >= now or drained < 1125899906842624 and debt + drained < back + unit - rate
  if not alone then
    if drained >= back then return end
    back = back - drained
  end
  debt = debt - back
  if debt < 0 then
    last = math.max(now, last - math.floor(-debt / rate))
    debt = 0
  end
  return last, debt, unit, last + (debt + -debt % rate) / rate
end

-- owed returns the debt that counts for the limit, and whether the stored debt is more than
-- the limit holds.
function owed(at, a, b, now, unit, rate, full)
  local debt = a
  if debt > 0 and b ~= unit then debt = b < 1 and full or (debt + -debt % b) / b * unit end
  return math.max(0, math.min(debt, full) - (now - at) * rate), debt > full
end
