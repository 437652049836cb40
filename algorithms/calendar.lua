-- window_of returns when the window that contains the instant `at` begins and ends. `edges`
-- contains lists of successive instants at which windows begin, with a 0 between lists. If none of
-- these windows contains `at`, window_of raises an error, and the store runs the script again with
-- more edges.
local function window_of(at, edges)
  for i = 1, #edges - 8, 8 do
    local start, finish = struct.unpack('<dd', edges, i)
    if start > 0 and start <= at and at < finish then return start, finish end
  end
  error(string.format('WEIR edges %.0f ', at))
end

local function take(at, a, b, till, now, cost, quota, period, burst, edges)
  if cost > quota then return -1 end
  local start, finish = window_of(now, edges)
  return spend(at >= start and a or 0, 0, finish, now, cost, quota)
end

local function cancel(at, a, b, till, now, of, n, quota, period, burst, edges)
  if of > at then return end
  local start, finish = window_of(at, edges)
  return cancel_in(start, finish, 0, at, a, b, now, of, n, quota)
end
