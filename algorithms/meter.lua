-- The arithmetic of meter.go. A unit is worth `unit` ticks, `rate` ticks drain in a µs, and
-- at most `full` ticks may be owed. Every number is an integer below 2^53, except products
-- that are only compared with a smaller number. (x + -x % y) / y is ⌈x/y⌉.

-- meter returns the functions that few charges need: those for limits that have changed,
-- and those for reservations.
local function meter(unit, rate, full)
  local m = {}

  -- owed returns the debt that counts for the limit, and whether the stored debt is more
  -- than the limit holds: see overdue.go.
  function m.owed(at, a, b, now)
    local debt = a
    if debt <= 0 then return 0, false end
    if b ~= unit then debt = b < 1 and full or (debt + -debt % b) / b * unit end
    local over = debt > full
    if over then debt = full end
    return math.max(0, debt - (now - at) * rate), over
  end

  -- overdue returns the debt in ticks of its own unit, and the step by which it drains:
  -- first in ticks of the limit, then in its own.
  local function overdue(at, a, b, now)
    local mine, its = unit, b
    if its == mine then mine, its = 1, 1 end
    local debt = math.min(a, 1125899906842624) -- 2^50
    local n = math.floor(math.min((now - at) * rate, 4503599627370496) / mine)
    if n >= (debt + -debt % its) / its then return 0, mine, its end
    return debt - n * its, mine, its
  end

  -- till returns when nothing is owed any more, in µs since 1970.
  local function till(at, a, b, now)
    local seen, over = m.owed(at, a, b, now)
    if not over then return now + (seen + -seen % rate) / rate end
    local debt, mine, its = overdue(at, a, b, now)
    local left = (debt + -debt % its) / its * mine
    if left >= 9007199254740992 then return now + 1125899906842624 end
    return now + math.min((left + -left % rate) / rate, 1125899906842624)
  end

  -- charged returns the state in which an overdue debt and a charge are owed.
  function m.charged(at, a, b, now, cost)
    local debt = overdue(at, a, b, now)
    if debt == 0 then debt, b = 0, unit end
    debt = debt + cost * b
    return now, debt, b, till(now, debt, b, now)
  end

  -- given returns the state in which n units of an overdue debt are given back.
  function m.given(at, a, b, now, n)
    local debt = math.min(a, 1125899906842624)
    if n >= (debt + -debt % b) / b then return now, 0, unit, now end
    debt = debt - n * b
    return at, debt, b, till(at, debt, b, now)
  end

  return m
end

local function take(at, a, b, till, now, cost, unit, rate, full)
  local debt = a
  if debt > 0 then
    if b ~= unit then debt = b < 1 and full or (debt + -debt % b) / b * unit end
    if debt > full then -- overdue
      local m = meter(unit, rate, full)
      if cost < 0 then return 0, m.given(at, a, b, now, -cost) end
      if cost * unit > full then return -1 end
      local over = m.owed(at, a, b, now) + cost * unit - full
      if over > 0 then return (over + -over % rate) / rate end
      return 0, m.charged(at, a, b, now, cost)
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
  local m = meter(unit, rate, full)
  local debt, over = m.owed(at, a, b, last)
  if over then
    if of ~= at or of < now then return end
    return m.given(at, a, b, of, n)
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
