-- The arithmetic of slidingwindow.go.

-- mul_div returns floor(a * b / c) for 0 <= a < c or 0 <= b < c, exactly even if the
-- product exceeds 2^53.
local function mul_div(a, b, c)
  if a * b < 9007199254740992 then return math.floor(a * b / c) end
  local most = math.max(a, b)
  a, b = math.min(a, b), most -- the Lua of miniredis cannot swap them by a, b = b, a
  -- Long division: a step takes many binary digits of a, but its products stay below 2^53.
  local digit = 2
  while digit * 2 * c < 4503599627370496 and digit * 2 * b < 4503599627370496 do digit = digit * 2 end
  local digits, n = {}, 0
  while a > 0 do
    n = n + 1
    digits[n] = a % digit
    a = math.floor(a / digit)
  end
  local whole = math.floor(b / c)
  local part = b % c
  local quo, rem = 0, 0
  for i = n, 1, -1 do
    rem = rem * digit + digits[i] * part
    quo = quo * digit + digits[i] * whole + math.floor(rem / c)
    rem = rem % c
  end
  return quo
end

-- load returns the µs since the current window began, the units of that window, and the
-- units of the previous window. If the counters were written under another period and
-- still count, load returns 0 for both windows, and a fourth value: the sum of all units.
local function load(at, a, b, till, now, period)
  local gone = now % period
  local start = now - gone
  local cur, prev, ends = 0, 0, start
  if at >= start then
    cur, prev, ends = a, b, start + period
    if cur > 0 then ends = ends + period end
  elseif at >= start - period then
    prev = a
    if prev > 0 then ends = start + period end
  end
  if till == ends or till == 0 or a == 0 and b == 0 then return gone, cur, prev end
  if now < till or now < at + period then return gone, 0, 0, a + b end
  return gone, 0, 0
end

-- take_mixed is mixed.step in mixed.go.
local function take_mixed(at, till, now, cost, quota, period, gone, kept)
  local last = at + period
  if cost > 0 then
    if now < last and kept > quota - cost then return last - now end
    return 0, now, math.min(kept + cost, 2251799813685248), 0, math.max(till, now - gone + 2 * period)
  end
  if kept + cost <= 0 then return 0, now, 0, 0, now end
  return 0, at, kept + cost, 0, math.max(till, last)
end

local function take(at, a, b, till, now, cost, quota, period)
  if cost > quota then return -1 end
  local gone, cur, prev, kept = load(at, a, b, till, now, period)
  if kept then return take_mixed(at, till, now, cost, quota, period, gone, kept) end
  if cost > 0 then
    local free = quota - cur - cost
    if free < 0 then return period - gone + period - mul_div(quota - cost, period, cur) end
    if prev > free then
      local wait = period - gone - mul_div(free, period, prev)
      if wait > 0 then return wait end
    end
    cur = cur + cost
  else
    local newest = math.min(-cost, cur)
    cur = cur - newest
    prev = math.max(0, prev - (-cost - newest))
  end
  local ends = now
  if cur > 0 then
    ends = now - gone + 2 * period
  elseif prev > 0 then
    ends = now - gone + period
  end
  return 0, now, cur, prev, ends
end

local function cancel(at, a, b, till, now, of, n, quota, period)
  local _, _, _, kept = load(at, a, b, till, math.max(now, at), period)
  if kept then
    if of > at or of <= at - period then return end
    if kept <= n then
      now = math.max(now, at)
      return now, 0, 0, now
    end
    return at, kept - n, 0, math.max(till, at + period)
  end
  local start = at - at % period
  local cur, prev = a, b
  if of > at or of < start - period then return end
  if of < start then
    prev = math.max(0, prev - n)
  else
    cur = math.max(0, cur - n)
  end
  if cur == 0 and start > now then
    if prev > 0 then return start - 1, prev, quota, start + period end
    return start - 1, 0, quota, start
  end
  if cur > 0 then return at, cur, prev, start + 2 * period end
  if prev > 0 then return at, 0, prev, start + period end
  return at, 0, 0, at
end
