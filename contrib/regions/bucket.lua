-- The arithmetic of bucket.go. `past` contains packed doubles: the number of steps, and the rate
-- and the length of each step. Outside of these functions, `now` is the time of the clock. A charge
-- that waits is decided for a later instant, `target`. (x + -x % y) / y is ⌈x/y⌉.
local most, forced = 2251799813685248, 1125899906842624 -- 2^51 and 2^50

local function drained(past, from, to)
  local steps, ticks, left = struct.unpack('<d', past), 0, math.min(now, to) - from
  for i = 1, steps do
    if left <= 0 then break end
    local rate, time = struct.unpack('<dd', past, 16 * i - 7)
    if i == steps or time > left then time = left end
    ticks, left = math.min(most, ticks + rate * time), left - time
  end
  local rate = struct.unpack('<d', past, 9)
  return math.min(most, ticks + math.max(0, to - math.max(now, from)) * rate)
end

local function debt_of(at, a, target, past)
  if a <= 0 then return 0 end
  return math.max(0, math.min(a, most) - drained(past, at, target))
end

-- state returns the next state, which is kept until the debt has drained at the smallest rate.
local function state(at, debt, past)
  local least = struct.unpack('<d', past, #past - 15)
  return at, debt, 0, at + (debt + -debt % least) / least
end

local function take(at, a, b, till, target, cost, quota, unit, burst, past)
  local debt = debt_of(at, a, target, past)
  if cost < 0 then
    debt = math.max(0, debt - math.min(-cost, forced, math.floor(most / unit)) * unit)
  elseif quota == forced then
    if debt < forced then debt = debt + math.min(cost, math.floor(forced / unit)) * unit end
  else
    if cost > burst then return -1 end
    local rate, over = struct.unpack('<d', past, 9), debt + (cost - burst) * unit
    if over > 0 then return (over + -over % rate) / rate end
    debt = debt + cost * unit
  end
  return 0, state(target, debt, past)
end

local function cancel(at, a, b, till, _, of, n, quota, unit, burst, past)
  if of > at or a <= 0 then return end
  local last = math.max(now, at)
  local debt = debt_of(at, a, last, past)
  local back, gone = math.min(n, math.floor(most / unit)) * unit, drained(past, of, last)
  if debt + gone >= back + unit then back = math.max(0, back - gone) end
  return state(last, math.max(0, debt - back), past)
end
