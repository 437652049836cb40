-- The arithmetic of window.go.
local function spend(spent, start, finish, at, cost, quota)
  if cost > 0 then
    if spent > quota - cost then return finish - at end
    spent = spent + cost
  else
    spent = math.max(0, spent + cost)
  end
  if spent == 0 then return 0, 0, start, 0 end
  return 0, spent, start, finish - at
end

local function cancel_in_window(s, quota, start, finish, before, now, at, n)
  if at < start or at > s.at then return end
  local spent = math.max(0, s.a - n)
  if spent > 0 then return s.at, spent, s.b, finish - s.at end
  if start > now then return start - 1, quota, before, 1 end
  return 0, 0, 0, 0
end
