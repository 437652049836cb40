-- The arithmetic of meter.go. Every number is an integer below 2^53; a product
-- that may be larger is only ever compared with a smaller one.

local function ceil_div(a, b)
  if a <= 0 then return 0 end
  return math.floor((a - 1) / b) + 1
end

local function ticks(quota, period, burst)
  local unit, rate, size = period, quota, burst
  if size == 0 then size = quota end
  if math.max(size, rate) * unit > 1125899906842624 then -- 2^50
    local a, b = unit, rate
    while b ~= 0 do
      local r = a % b -- on its own line: the Lua of miniredis would assign a first
      a, b = b, r
    end
    unit, rate = unit / a, rate / a
  end
  return unit, rate, size
end

-- owed returns the debt that the limit sees, and whether it was more than it holds:
-- the rest of that is in overdue.go.
local function owed(s, at, unit, rate, size)
  local debt, full, over = s.a, size * unit, false
  if debt <= 0 then return 0, false end
  if s.b ~= unit then
    if s.b < 1 then
      debt = full
    else
      local n = ceil_div(debt, s.b)
      over = n > size
      debt = n * unit
    end
  else
    over = debt > full
  end
  if over then debt = full end
  local drained = (at - s.at) * rate
  if drained < debt then return debt - drained, over end
  return 0, over
end

local function overdue(s, at, unit, rate)
  local mine, its = unit, s.b
  if its == mine then mine, its = 1, 1 end
  local debt = math.min(s.a, 1125899906842624)
  local n = math.floor(math.min((at - s.at) * rate, 4503599627370496) / mine)
  if n >= ceil_div(debt, its) then return 0, mine, its end
  return debt - n * its, mine, its
end

-- rest returns the µs until nothing is owed.
local function rest(s, at, unit, rate, size)
  local seen, over = owed(s, at, unit, rate, size)
  if not over then return ceil_div(seen, rate) end
  local debt, mine, its = overdue(s, at, unit, rate)
  local left = ceil_div(debt, its) * mine
  if left >= 9007199254740992 then return 1125899906842624 end
  return math.min(ceil_div(left, rate), 1125899906842624)
end

local function give_back(s, n)
  local debt = math.min(s.a, 1125899906842624)
  if n >= ceil_div(debt, s.b) then return 0 end
  return debt - n * s.b
end

local function charged(s, at, cost, unit, rate)
  local debt = overdue(s, at, unit, rate)
  if debt == 0 then return {at = at, a = cost * unit, b = unit} end
  return {at = at, a = debt + cost * s.b, b = s.b}
end

local function take_over(s, at, cost, unit, rate, size)
  local new
  if cost > 0 then
    new = charged(s, at, cost, unit, rate)
  else
    new = {at = s.at, a = give_back(s, -cost), b = s.b}
    if new.a == 0 then new.at, new.b = at, unit end
  end
  return 0, new.a, new.b, rest(new, at, unit, rate, size), new.at
end

local function take(s, at, cost, quota, period, burst)
  local unit, rate, size = ticks(quota, period, burst)
  if cost > size then return -1 end
  local debt, over = owed(s, at, unit, rate, size)
  if cost > 0 then
    local retry = ceil_div(debt + cost * unit - size * unit, rate)
    if retry > 0 then return retry end
  end
  if over then return take_over(s, at, cost, unit, rate, size) end
  if cost > 0 then
    debt = debt + cost * unit
  else
    debt = math.max(0, debt - math.min(-cost, size) * unit)
  end
  return 0, debt, unit, ceil_div(debt, rate)
end

local function cancel(s, now, at, n, quota, period, burst)
  local unit, rate, size = ticks(quota, period, burst)
  if at > s.at or s.a <= 0 and at < now then return end
  local last = math.max(now, s.at)
  local debt, over = owed(s, last, unit, rate, size)
  if over then
    if at ~= s.at or at < now then return end
    local new = {at = at, a = give_back(s, n), b = s.b}
    if new.a == 0 then new.b = unit end
    return at, new.a, new.b, rest(new, at, unit, rate, size)
  end
  local back = math.min(n, size) * unit
  local drained = (last - at) * rate
  local alone = at == s.at and at >= now or drained < 1125899906842624 and debt + drained < back + unit - rate
  if not alone then
    if drained >= back then return end
    back = back - drained
  end
  debt = debt - back
  if debt < 0 then
    last = math.max(now, last - math.floor(-debt / rate))
    debt = 0
  end
  return last, debt, unit, ceil_div(debt, rate)
end
