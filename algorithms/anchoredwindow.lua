local function take(s, at, cost, quota, period)
  if cost > quota then return -1 end
  if s.a > 0 and at < s.till and s.till > s.b + period then -- mixed, see mixed.go
    local kept, last = s.a, s.at + period
    if cost > 0 then
      if at < math.min(last, s.till) and kept > quota - cost then return math.min(last, s.till) - at end
      kept = math.min(kept + cost, 2251799813685248)
      if at >= last and at + period > s.till then return 0, kept, at, period end
      return 0, kept, s.b, s.till - at
    end
    kept = math.max(0, kept + cost)
    if kept == 0 then return 0, 0, 0, 0 end
    return 0, kept, s.b, s.till - at, s.at
  end
  local start, spent = at, 0
  if s.a > 0 and at < s.b + period then start, spent = s.b, s.a end
  return spend(spent, spent, start, start + period, start + period, s, at, cost, quota)
end

local function cancel(s, now, at, n, quota, period)
  local finish = s.b + period
  if math.max(now, s.at) < s.till then finish = math.max(finish, s.till) end
  return cancel_in_window(s, quota, s.b, finish, 0, s.b - period, now, at, n)
end
