local function take(at, a, b, till, now, cost, quota, period)
  if a > 0 and now < till and till > b + period then -- the state is mixed: see mixed.go
    if cost <= 0 then
      if a + cost <= 0 then return 0, now, 0, 0, now end
      return 0, at, a + cost, b, till
    end
    if cost > quota then return -1 end
    local last = at + period
    local finish = math.min(last, till)
    if now < finish and a > quota - cost then return finish - now end
    a = math.min(a + cost, 2251799813685248)
    if now >= last and now + period > till then return 0, now, a, now, now + period end
    return 0, now, a, b, till
  end
  local start, spent = now, 0
  if a > 0 and now < b + period then start, spent = b, a end
  return spend(spent, spent, start, start + period, start + period, at, now, cost, quota)
end

local function cancel(at, a, b, till, now, of, n, quota, period)
  local finish = b + period
  if math.max(now, at) < till then finish = math.max(finish, till) end
  return cancel_in(b, finish, b - period, at, a, b, now, of, n, quota)
end
