-- What does not fit now never fits: see inflight.go.
local wait_of = take
local function take(c, at, cost, quota, period)
  local wait = wait_of(c, at, cost, quota, period)
  if wait > 0 then return -1 end
  return wait
end
