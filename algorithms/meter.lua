-- The arithmetic of meter.go, force.go and overdue.go. A unit is worth `unit` ticks, `rate` ticks
-- drain in a µs, and at most `full` ticks may be owed, unless c ticks were forced beyond that.
-- Every number is an integer below 2^53, except products that are only compared with a smaller
-- number. (x + -x % y) / y is ⌈x/y⌉. 4503599627370496 is 2^52 (mostOwed), and 1125899906842624 is
-- 2^50 (maxReset).
local owed -- defined below cancel, because take does not call it: see upTo in redisstore

-- copy take
local function take(at, a, b, till, now, cost, unit, rate, full, edges, c)
  local debt, most = a, full
  if debt > 0 then
    if b ~= unit then debt = b < 1 and full or math.min((debt + -debt % b) / b * unit, 4503599627370496) end
    if c > 0 then most = full + (b == unit and c or math.min((c + -c % b) / b * unit, 4503599627370496)) end
    if debt > most then -- overdue: see overdue.go
      -- The debt drains in steps. A step is `mine` ticks of this limit and `its` ticks of
      -- the debt.
      local owes, mine, its, forced = math.min(a, 4503599627370496), unit, b, 0
      if its == mine then mine, its = 1, 1 end
      local drained = math.floor(math.min((now - at) * rate, 9007199254740992) / mine) * its
      if cost < 0 then
        if -cost >= (owes + -owes % b) / b then return 0, now, 0, unit, now, 0 end
        forced = math.max(0, c + cost * b)
      else
        if cost * unit > full then return -1 end
        local over = math.max(0, most - (now - at) * rate) + cost * unit - full
        if over > 0 then return (over + -over % rate) / rate end
        at, owes, drained = now, owes - drained, 0
        if owes <= 0 then owes, b = 0, unit end
      end
      owes = owes + cost * b
      most = full + (b == unit and forced or math.min((forced + -forced % b) / b * unit, 4503599627370496))
      local left = b == unit and owes or math.min((owes + -owes % b) / b * unit, 4503599627370496)
      if left > most then
        left = math.max(0, owes - drained)
        if b ~= unit then left = math.min((left + -left % b) / b * unit, 4503599627370496) end
      else
        left = math.max(0, left - (now - at) * rate)
      end
      return 0, at, owes, b, now + math.min((left + -left % rate) / rate, 1125899906842624), forced
    end
    debt = debt - (now - at) * rate
  end
  if debt < 0 then debt = 0 end
  debt = debt + cost * unit
  if debt > full and cost > 0 then
    if cost * unit > full then return -1 end
    debt = debt - full
    return (debt + -debt % rate) / rate
  end
  if debt < 0 then debt = 0 end
  if c > 0 then return 0, now, debt, unit, now + math.min((debt + -debt % rate) / rate, 1125899906842624), math.max(0, math.min(debt, most - full - (now - at) * rate + math.min(0, cost * unit))) end
  return 0, now, debt, unit, now + (debt + -debt % rate) / rate, 0
end

local function cancel(at, a, b, till, now, of, n, unit, rate, full, edges, c)
  if of > at or a <= 0 and of < now then return end
  local drained = (at - of) * rate
  local debt, over = owed(at, a, b, at, unit, rate, full, c)
  local last = math.max(now, at)
  if over then
    if of < at then n = math.min(n - (drained + -drained % unit) / unit, math.floor(c / b)) end
    if n <= 0 then return end
    return select(2, take(at, a, b, till, last, -n, unit, rate, full, edges, c))
  end
  local back = math.min(n * unit, 4503599627370496)
  local alone = of == at and of >= now or debt + drained < back + unit
  if not alone then
    back = back - drained
    if back <= 0 then return end
  end
  debt, over, c = owed(at, a, b, last, unit, rate, full, c)
  debt = debt - back
  if debt < 0 then
    last = math.max(now, last - math.floor(-debt / rate))
    debt = 0
  end
  return last, debt, unit, last + math.min((debt + -debt % rate) / rate, 1125899906842624), math.max(0, math.min(debt, c - back))
end

-- force is meter.force of force.go.
local function force(at, a, b, till, now, cost, unit, rate, full, edges, c)
  local seen, over, forced = owed(at, a, b, now, unit, rate, full, c)
  local owes, worth = seen, unit
  if over then
    local mine, its = unit, b
    if its == mine then mine, its = 1, 1 end
    owes = math.min(a, 4503599627370496) - math.floor(math.min((now - at) * rate, 9007199254740992) / mine) * its
    if owes > 0 then worth = b else owes = 0 end
  end
  local n = math.min(cost, math.floor(math.max(0, math.min(rate, 4) * 1125899906842624 - owes) / worth))
  if n == 0 then return end
  forced = math.max(0, forced, math.min(4503599627370496, seen + math.min(n * unit, 4503599627370496)) - full)
  if worth ~= unit then forced = (forced + -forced % unit) / unit * worth end
  owes = owes + n * worth
  local left = worth == unit and owes or math.min((owes + -owes % worth) / worth * unit, 4503599627370496)
  return now, owes, worth, now + math.min((left + -left % rate) / rate, 1125899906842624), forced
end

-- owed returns the debt that counts for the limit, whether the stored debt is more than that,
-- and how many of the ticks that were forced are still owed.
function owed(at, a, b, now, unit, rate, full, c)
  local debt = a
  if debt > 0 and b ~= unit then
    debt = b < 1 and full or math.min((debt + -debt % b) / b * unit, 4503599627370496)
    if c > 0 then c = math.min((c + -c % b) / b * unit, 4503599627370496) end
  end
  local drained = (now - at) * rate
  return math.max(0, math.min(debt, full + c) - drained), debt > full + c, math.max(0, c - drained)
end
