local function take(s, at, cost, quota, period)
  if cost > quota then return -1 end
  local start, spent = at, 0
  if s.a > 0 and at < s.b + period then start, spent = s.b, s.a end
  return spend(spent, spent, start, start + period, start + period, s, at, cost, quota)
end

local function cancel(s, now, at, n, quota, period)
  return cancel_in_window(s, quota, s.b, s.b + period, s.b - period, now, at, n)
end
