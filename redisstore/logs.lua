-- This part evaluates the charges for one value with logs. All charges must have the same cost, and
-- the key must be new, or the value must begin with a log of exactly these limits. slidinglog.lua
-- defines the format, and handles what happens once per block: the block becomes full, or no limit
-- needs it any more. `break` leaves the transaction to general.lua. This file is a template: see
-- expand.go. The function above "-- value" is also part of loop.lua.

-- leave removes the units that have left a window, that is, units that were not spent after the
-- instant "old". If the next unit is not in the same block, leave returns nothing.
local function leave(key, text, from, base, no, high, b, u, s, old)
  local fields, first = struct.unpack, from + 17
  if b <= high then
    text, first = redis.call('HGET', key, string.format('%.0f:%.0f', no, b)), 18
    if not text or string.byte(text) ~= 110 then return end
    base = fields('<d', text, 2)
  end
  local lo, hi, gone, time = 0, math.floor((#text - first + 1) / 9) + 1, u
  while hi - lo > 1 do
    local mid = math.floor((lo + hi) / 2)
    local e, n = fields('<I5I4', text, first + 9 * mid - 9)
    if n <= u or base + e <= old then lo, gone = mid, n else hi, time = mid, base + e end
  end
  if time and gone >= u then return gone, s - gone + u, time end
end
-- value
do
  local LIST{NUMBERS}, cost, longest = fields('<TIMES{FORM}dd', PACKED)
  within = longest
  local text, ids = call('HGET', KEY, 'h'), IDS
  local keep, spare = math.max(LIST{y_i})
  spare = math.ceil(keep / 8) -- so that few charges must extend the TTL of the value
  if not text then
    if ANY{cost > x_i} or cost >= 2 ^ 32 then break end
    value_v = pack('<c0I4ddI4I4I4TIMES{ddddI4}c0ddI5I4',
      ids, 1, now, now + keep + spare, 1, 0, 26, LIST{y_i, cost, now, 0, 1}, 'n', now, 0, 0, cost)
    ttl_v = math.ceil((keep + spare) / 1000) + 1 + slack_ms
    reply_v = string.rep('\0', 8 * CHARGES)
  else
    if find(text, ids, 1, true) ~= 1 then break end
    local no, at, expires, low, high, len, LIST{k_i, s_i, f_i, u_i, b_i} =
      fields('<I4ddI4I4I4TIMES{ddddI4}', text, #ids + 1)
    local from = #ids + 33 + 36 * CHARGES
    local rest -- other logs, under limits that were removed or that only other processes charge
    if from + len <= #text then
      if at > now then break end
      rest = string.sub(text, from + len) -- a separate statement, because the Lua of miniredis would use the new text
      text = string.sub(text, 1, from + len - 1)
    end
    if at > now and (not catch_up or VALUE > 1) then break end
    if #text ~= from + len - 1 or string.byte(text, from) ~= 110 or ANY{k_i ~= y_i} then break end
    if at > now then catch_up(at) end
    if ALL{low < b_i} then break end -- no limit needs the first block
    local base = fields('<d', text, from + 1)
    local after, sum = fields('<I5I4', text, #text - 8)
    local last = base + after
    if ANY{f_i <= now - y_i} then
      -- each charge
      if f_i <= now - y_i then u_i, s_i, f_i = leave(KEY, text, from, base, no, high, b_i, u_i, s_i, now - y_i) end
      if not u_i then break end
      -- end
    end
    if ANY{s_i + cost > x_i + 1} then break end
    reply_v = pack('<TIMES{ddddddd}', LIST{6, at, 0, 1, f_i, s_i, last})
    if ANY{s_i + cost > x_i} then
      wait = 1
    elseif wait == 0 then
      local next = 1 -- where the next log in rest begins
      while rest and next <= #rest do
        local ids_end = find(rest, ';', next, true)
        if not ids_end or #rest < ids_end + 32 then break end
        local other_len = fields('<I4', rest, ids_end + 29)
        local _, limits = string.gsub(string.sub(rest, next, ids_end), '[,;]', '')
        next = ids_end + 33 + 36 * limits + other_len
      end
      if rest and next ~= #rest + 1 then break end -- the time of the write follows, because a log has entries in the future
      if now - base >= 2 ^ 40 or sum + cost >= 2 ^ 32 then break end
      local till, size = #text, len + 9
      if last == now then till, size = till - 9, len elseif len >= 17 + 64 * 9 then break end
      if expires < now + keep then
        expires = now + keep + spare
        ttl_v = math.ceil((keep + spare) / 1000) + 1 + slack_ms
      end
      value_v = pack('<c0I4ddI4I4I4TIMES{ddddI4}c0I5I4', ids, no, now, expires, low, high, size,
        LIST{k_i, s_i + cost, f_i, u_i, b_i}, string.sub(text, from, till), now - base, sum + cost)
      if rest then value_v = value_v .. rest end
    end
  end
end
-- write
call('HSET', KEY, 'h', value_v)
if ttl_v then call('PEXPIRE', KEY, ttl_v) end
