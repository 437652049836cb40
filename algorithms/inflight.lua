-- The wait of a charge that does not fit is -1 (never), because it is not known when a request will
-- end.
local wait_of = take
local function take(c, at, cost, quota, period)
  local wait = wait_of(c, at, cost, quota, period)
  if wait > 0 then return -1 end
  return wait
end
