-- edges are where windows begin, around the time at which the request was made.
-- Where they don't reach the instant asked for, the caller must ask again.
local function take(s, at, cost, quota, _, _, edges)
  if cost > quota then return -1 end
  local start, finish
  for edge in string.gmatch(edges, '%d+') do
    start, finish = finish, tonumber(edge)
    if finish > at then break end
  end
  if not start or start > at or finish <= at then error(string.format('WEIR edges %.0f ', at)) end
  local spent = 0
  if s.at >= start then spent = s.a end
  return spend(spent, 0, finish, at, cost, quota)
end
