-- The arithmetic of slidingwindow.go.

-- mul_div returns floor(a * b / c) for 0 <= a < c or 0 <= b < c, however large
-- the product.
local function mul_div(a, b, c)
  if a * b < 9007199254740992 then return math.floor(a * b / c) end
  if a > b then a, b = b, a end
  -- long division, by as many binary digits of a as leave room
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

-- load returns the µs of the current window, its units and those of the one before;
-- or, if they were written under another period and still matter, all that are kept.
local function load(s, at, period)
  local gone = at % period
  local start = at - gone
  local cur, prev, till = 0, 0, start
  if s.at >= start then
    cur, prev, till = s.a, s.b, start + period
    if cur > 0 then till = till + period end
  elseif s.at >= start - period then
    prev = s.a
    if prev > 0 then till = start + period end
  end
  if s.till == till or s.till == 0 or s.a == 0 and s.b == 0 then return gone, cur, prev end
  if at < s.till or at < s.at + period then return gone, 0, 0, s.a + s.b end
  return gone, 0, 0
end

-- take_mixed is mixed.step in mixed.go.
local function take_mixed(s, at, cost, quota, period, gone, kept)
  local last = s.at + period
  if cost > 0 then
    if at < last and kept > quota - cost then return last - at end
    return 0, math.min(kept + cost, 2251799813685248), 0, math.max(s.till, at - gone + 2 * period) - at
  end
  kept = math.max(0, kept + cost)
  if kept == 0 then return 0, 0, 0, 0 end
  return 0, kept, 0, math.max(s.till, last) - at, s.at
end

local function take(s, at, cost, quota, period)
  if cost > quota then return -1 end
  local gone, cur, prev, kept = load(s, at, period)
  if kept then return take_mixed(s, at, cost, quota, period, gone, kept) end
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
  local reset = 0
  if cur > 0 then
    reset = period - gone + period
  elseif prev > 0 then
    reset = period - gone
  end
  return 0, cur, prev, reset
end

local function cancel(s, now, at, n, quota, period)
  local _, _, _, kept = load(s, math.max(now, s.at), period)
  if kept then
    if at > s.at or at <= s.at - period then return end
    if kept <= n then return math.max(now, s.at), 0, 0, 0 end
    return s.at, kept - n, 0, math.max(s.till, s.at + period) - s.at
  end
  local gone = s.at % period
  local start = s.at - gone
  local cur, prev = s.a, s.b
  if at > s.at or at < start - period then return end
  if at < start then
    prev = math.max(0, prev - n)
  else
    cur = math.max(0, cur - n)
  end
  if cur == 0 and start > now then
    if prev > 0 then return start - 1, prev, quota, 1 + period end
    return start - 1, 0, quota, 1
  end
  if cur > 0 then return s.at, cur, prev, period - gone + period end
  if prev > 0 then return s.at, 0, prev, period - gone end
  return s.at, 0, 0, 0
end
