-- edges are where windows begin, around the instants that are likely to matter: one
-- or more runs of them, with a 0 in between. Where they don't reach the instant
-- asked for, the caller must ask again.
local function window_of(at, edges)
  local start, finish
  for edge in string.gmatch(edges, '%d+') do
    start, finish = finish, tonumber(edge)
    if start and start > 0 and start <= at and at < finish then return start, finish end
  end
  error(string.format('WEIR edges %.0f ', at))
end

local function take(s, at, cost, quota, _, _, edges)
  if cost > quota then return -1 end
  local start, finish = window_of(at, edges)
  return spend_in(start, finish, s, at, cost, quota)
end

local function cancel(s, now, at, n, quota, _, _, edges)
  if at > s.at then return end
  local start, finish = window_of(s.at, edges)
  return cancel_in_window(s, quota, start, finish, s.b, 0, now, at, n)
end
