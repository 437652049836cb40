-- The arithmetic of window.go. The function spend decides a charge in a window in which `spent`
-- units are spent and which ends at `finish`.
local function spend(spent, b, finish, now, cost, quota)
  if cost > 0 and spent > quota - cost then
    if cost > quota then return -1 end
    return finish - now
  end
  spent = spent + cost
  if spent <= 0 then return 0, now, 0, 0, now end
  if spent > 2251799813685248 then spent = 2251799813685248 end -- 2^51
  return 0, now, spent, b, finish
end

local function cancel_in(start, finish, before, at, a, b, now, of, n, quota)
  if of < start or of > at then return end
  if a > n then return at, a - n, b, finish end
  if start > now then return start - 1, quota, before, start end
  return 0, 0, 0, 0
end
