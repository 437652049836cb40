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

local function owed(s, at, unit, rate, size)
  local debt = s.a
  if debt <= 0 then return 0 end
  if s.b ~= unit then
    if s.b < 1 then
      debt = size * unit
    else
      debt = math.min(ceil_div(debt, s.b), size) * unit
    end
  end
  debt = math.min(debt, size * unit)
  local drained = (at - s.at) * rate
  if drained < debt then return debt - drained end
  return 0
end

local function take(s, at, cost, quota, period, burst)
  local unit, rate, size = ticks(quota, period, burst)
  if cost > size then return -1 end
  local debt = owed(s, at, unit, rate, size)
  if cost > 0 then
    local retry = ceil_div(debt + cost * unit - size * unit, rate)
    if retry > 0 then return retry end
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
  local debt, back = owed(s, last, unit, rate, size), math.min(n, size) * unit
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
