-- The arithmetic of window.go. spend decides a charge in a window that has `spent` units
-- and ends at `finish`. The longest window has `kept` units and ends at `ends`.
local function spend(spent, kept, b, finish, ends, at, now, cost, quota)
  if cost > 0 then
    if spent > quota - cost then
      if cost > quota then return -1 end
      return finish - now
    end
    kept = kept + cost
    if kept > 2251799813685248 then kept = 2251799813685248 end -- 2^51
    return 0, now, kept, b, ends
  end
  if kept + cost <= 0 then return 0, now, 0, b, now end
  if spent == 0 then now = at end
  return 0, now, kept + cost, b, ends
end

local function spend_in(start, finish, at, a, b, now, cost, quota)
  local spent, ends = 0, finish
  if at >= start then spent = a end
  local kept = spent
  if now < b then
    kept = a
    if b > finish then ends = b end
  end
  return spend(spent, kept, ends, finish, ends, at, now, cost, quota)
end

local function cancel_in(start, till, before, at, a, b, now, of, n, quota)
  if of < start or of > at then return end
  if a > n then return at, a - n, b, till end
  if start > now then return start - 1, quota, before, start end
  return 0, 0, 0, 0
end
