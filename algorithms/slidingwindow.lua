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

local function take(s, at, cost, quota, period)
  if cost > quota then return -1 end
  local gone = at % period
  local start = at - gone
  local cur, prev = 0, 0
  if s.at >= start then
    cur, prev = s.a, s.b
  elseif s.at >= start - period then
    prev = s.a
  end
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
