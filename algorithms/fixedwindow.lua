local function take(s, at, cost, quota, period)
  if cost > quota then return -1 end
  local start = at - at % period
  return spend_in(start, start + period, s, at, cost, quota)
end

local function cancel(s, now, at, n, quota, period)
  local start = s.at - s.at % period
  return cancel_in_window(s, quota, start, start + period, s.b, 0, now, at, n)
end
