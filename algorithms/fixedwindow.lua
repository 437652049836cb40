local function take(at, a, b, till, now, cost, quota, period)
  local start = now - now % period
  return spend_in(start, start + period, at, a, b, now, cost, quota)
end

local function cancel(at, a, b, till, now, of, n, quota, period)
  local start = at - at % period
  return cancel_in(start, math.max(start + period, b), 0, at, a, b, now, of, n, quota)
end
