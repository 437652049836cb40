local function take(at, a, b, till, now, cost, quota, period)
  local start = now - now % period
  return spend(at >= start and a or 0, 0, start + period, now, cost, quota)
end

local function cancel(at, a, b, till, now, of, n, quota, period)
  local start = at - at % period
  return cancel_in(start, start + period, 0, at, a, b, now, of, n, quota)
end
