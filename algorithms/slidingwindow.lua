-- The arithmetic of slidingwindow.go. The function mul_div is in muldiv.lua.

local function take(at, a, b, till, now, cost, quota, period)
  if cost > quota then return -1 end
  local gone, cur, prev = now % period, 0, 0
  if at >= now - gone then
    cur, prev = a, b
  elseif at >= now - gone - period then
    prev = a
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
  local ends = now
  if cur > 0 then
    ends = now - gone + 2 * period
  elseif prev > 0 then
    ends = now - gone + period
  end
  return 0, now, cur, prev, ends
end

local function cancel(at, a, b, till, now, of, n, quota, period)
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
