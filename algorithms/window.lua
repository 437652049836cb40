-- The arithmetic of window.go.
local function spend(spent, kept, b, finish, ends, s, at, cost, quota)
  if cost > 0 then
    if spent > quota - cost then return finish - at end
    return 0, math.min(kept + cost, 2251799813685248), b, ends - at
  end
  local last = at
  if spent == 0 and kept > 0 then last = s.at end
  kept = math.max(0, kept + cost)
  if kept == 0 then return 0, 0, b, 0, last end
  return 0, kept, b, ends - at, last
end

local function spend_in(start, finish, s, at, cost, quota)
  local spent, ends = 0, finish
  if s.at >= start then spent = s.a end
  local kept = spent
  if at < s.b then kept, ends = s.a, math.max(finish, s.b) end
  return spend(spent, kept, ends, finish, ends, s, at, cost, quota)
end

local function cancel_in_window(s, quota, start, finish, ends, before, now, at, n)
  if at < start or at > s.at then return end
  local spent = math.max(0, s.a - n)
  if spent > 0 then return s.at, spent, s.b, math.max(finish, ends) - s.at end
  if start > now then return start - 1, quota, before, 1 end
  return 0, 0, 0, 0
end
