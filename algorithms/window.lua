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
