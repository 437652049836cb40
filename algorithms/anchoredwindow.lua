local function take(at, a, b, till, now, cost, quota, period)
  local start, spent = now, 0
  if a > 0 and now < b + period then start, spent = b, a end
  return spend(spent, start, start + period, now, cost, quota)
end

local function cancel(at, a, b, till, now, of, n, quota, period)
  return cancel_in(b, b + period, b - period, at, a, b, now, of, n, quota)
end
