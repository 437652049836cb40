-- The arithmetic of meter.go. In a script, muldiv.lua precedes this text. A unit has `period`
-- parts, and `quota` parts drain in each µs. A debt is `a` units and `b` parts. Every number is an
-- integer below 2^53, except products that are only compared with a smaller number. (x + -x % y) /
-- y is ⌈x/y⌉. 4503599627370496 is 2^52, and 1125899906842624 is 2^50 (MaxTicks). A rest is below
-- the period. If it is at least the quota, it therefore exceeds the slack, min(quota, period) - 1.

-- drained is meter.drained of meter.go.
local function drained(micros, quota, period)
  if micros * quota / period > 4503599627370496 then return 9007199254740992, 0 end
  return mul_div(micros, quota, period)
end

-- drain_time is meter.wait of meter.go. 1125899906842625 is maxReset.
local function drain_time(units, rest, quota, period)
  local parts = units * period + rest
  if parts <= 1125899906842624 then return (parts + -parts % quota) / quota end
  if parts / quota > 1125899906842626 then return 1125899906842625 end
  local micros, left = mul_div(units, period, quota)
  left = left + rest
  return math.min(micros + (left + -left % quota) / quota, 1125899906842625)
end

-- ends returns when a debt of `a` units and `b` parts at the instant `at` has drained, as computed
-- at `now`.
local function ends(at, a, b, now, quota, period)
  local gone, back = drained(now - at, quota, period)
  a, b = a - gone, b - back
  if b < 0 then a, b = a - 1, b + period end
  return a < 0 and now or now + drain_time(a, b, quota, period)
end

-- debtAt returns the debt at the instant `now`, the part of the debt that the limit counts, how
-- much of the debt was forced, and whether the limit counts less than the whole debt.
local function debtAt(at, a, b, now, quota, period, burst, c)
  local size = burst > 0 and burst or quota
  if b >= period then a, b = size, 0 end
  local most, part = math.min(a, size + math.max(0, c - 1)), b
  if c == 0 and a >= size and b >= quota then part = quota - 1 end
  local over = most < a or part < b
  local gone, back = drained(now - at, quota, period)
  local function left(units, rest)
    units, rest = units - gone, rest - back
    if rest < 0 then units, rest = units - 1, rest + period end
    if units < 0 then return 0, 0 end
    return units, rest
  end
  local units, rest = left(a, b)
  most, part = left(most, part)
  if c > 0 then c = math.max(0, c - gone - (b < back and 1 or 0)) end
  return units, rest, most, part, c, over
end

-- The lines between "inline" and "end" decide almost all charges. They set `wait`, and also `at`,
-- `a`, `b` and `till` if the charge fits. If a number is too large for these lines, `wait` is
-- nil. The method Inline returns the lines.
local function take(at, a, b, till, now, cost, quota, period, burst, edges, c)
  local wait, need = nil, cost
  if c == 0 then
    -- inline
    repeat
      wait = nil
      if cost < 0 or b >= period then break end
      local size, units, rest, gone, back = burst > 0 and burst or quota, a, b, 0, (now - at) * quota
      if a >= size then
        units = size
        if b >= quota then rest = quota - 1 end
      end
      if back >= period then
        if back < 9007199254740992 then
          gone = back
          back = back % period
          gone = (gone - back) / period
        else
          if back < (a + 2) * period then break end
          gone, back = a + 1, 0 -- more than the debt, even if the product is rounded
        end
      end
      units, rest = units - gone, rest - back
      if rest < 0 then units, rest = units - 1, rest + period end
      if units < 0 then units, rest = 0, 0 end
      local lack = units + need - size
      if lack < 0 or lack == 0 and rest < quota then
        if a >= size then -- the debt may be more than what the limit counts
          units, rest = a - gone, b - back
          if rest < 0 then units, rest = units - 1, rest + period end
          if units < 0 then units, rest = 0, 0 end
        end
        wait, units = 0, units + cost
      else
        if need > size then wait = -1 break end
        units, rest = lack, rest - (quota < period and quota or period) + 1
      end
      local parts, micros = units * period + rest, 0
      if parts > 1125899906842624 then
        local left = period % quota
        micros, parts = units * ((period - left) / quota), units * left + rest
        if micros + parts > 1125899906842624 then wait = nil break end
      end
      micros = micros + (parts + -parts % quota) / quota
      if wait then at, a, b, till = now, units, rest, now + micros else wait = micros end
    until true
    -- end
    if wait == 0 then return 0, at, a, b, till, 0 end
    if wait then return wait end
  end
  local size = burst > 0 and burst or quota
  if cost < 0 then
    if b >= period then a, b = size, 0 end
    a = a + cost
    if a < 0 then return 0, now, 0, 0, now, 0 end
    return 0, at, a, b, ends(at, a, b, now, quota, period), math.max(0, c + cost)
  end
  local counts, part
  a, b, counts, part, c = debtAt(at, a, b, now, quota, period, burst, c)
  local lack, over = counts + cost - size, part - math.min(quota, period) + 1
  if lack < 0 or lack == 0 and over <= 0 then
    return 0, now, a + cost, b, now + drain_time(a + cost, b, quota, period), c
  end
  return cost > size and -1 or drain_time(lack, over, quota, period)
end

local function cancel(at, a, b, till, now, of, n, quota, period, burst, edges, c)
  if of > at or a <= 0 and b <= 0 and of < now then return end
  local _, over
  a, b, _, _, c, over = debtAt(at, a, b, at, quota, period, burst, c)
  local gone, back = drained(at - of, quota, period)
  n = math.min(n, 4503599627370496)
  if over then
    if of < at then n = math.min(n - gone - (back > 0 and 1 or 0), c - 1) end
    if n <= 0 then return end
    return select(2, take(at, a, b, till, math.max(now, at), -n, quota, period, burst, edges, c))
  end
  local parts = 0
  local alone = of == at and of >= now or a + gone + (b + back >= period and 1 or 0) <= n
  if not alone then
    n, parts = n - gone, -back
    if parts < 0 then n, parts = n - 1, parts + period end
    if n < 0 or n == 0 and parts == 0 then return end
  end
  if c > 0 then c = math.max(0, c - n - (b < parts and 1 or 0)) end
  a, b = a - n, b - parts
  if b < 0 then a, b = a - 1, b + period end
  if a >= 0 then return at, a, b, ends(at, a, b, math.max(now, at), quota, period), c end
  a, b = -a, -b
  if b < 0 then a, b = a - 1, b + period end
  at = math.max(now, at - drain_time(a, b - quota + 1, quota, period))
  return at, 0, 0, at, 0
end

local function force(at, a, b, till, now, cost, quota, period, burst, edges, c)
  local size = burst > 0 and burst or quota
  local units, rest, counts, part
  units, rest, counts, part, c = debtAt(at, a, b, now, quota, period, burst, c)
  local most = math.min(drained(1125899906842624, quota, period), 1125899906842624)
  local n = math.min(cost, most - units - (rest > 0 and 1 or 0))
  if n <= 0 then return end
  counts = counts + n - size
  if counts > 0 or counts == 0 and part >= quota then
    c = math.max(c, counts + 1 + (part > rest and 1 or 0))
  end
  return now, units + n, rest, now + drain_time(units + n, rest, quota, period), c
end
