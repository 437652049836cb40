-- These lines decide the charges of one value with logs, if all have the same cost, and if the
-- key was never seen or the value has one log with only their limits. They use the format that
-- slidinglog.lua defines, and leave to that file what happens once in a block: that the block
-- is full, or that no limit needs it any more. `break` leaves the transaction to general.lua.
do
  local «NUMBERS», cost, longest = numbers(PACKED)
  within = longest
  local text, ids = call('HGET', KEYS[¤], 'h'), IDS
  local keep, slack = math.max(«y#»)
  slack = math.ceil(keep / 8) -- so that few charges must lengthen the TTL of the value
  if not text then
    if «cost > x#| or » or cost >= 2 ^ 32 then break end
    value¤ = pack('<c0I4ddI4I4I4«ddddI4|»c0ddI5I4', ids, 1, now, now + keep + slack, 1, 0, 26, «y#, cost, now, 0, 1», 'n', now, 0, 0, cost)
    ttl¤ = math.ceil((keep + slack) / 1000) + 1
    reply¤ = string.rep('\0', 8 * («1| + »))
  else
    if find(text, ids, 1, true) ~= 1 then break end
    local no, at, expires, low, high, len, «k#, s#, f#, u#, b#» = fields('<I4ddI4I4I4«ddddI4|»', text, #ids + 1)
    local from = #ids + 33 + 36 * («1| + »)
    if at > now and (not catch_up or ¤ > 1) or #text ~= from + len - 1 or string.byte(text, from) ~= 110 or «k# ~= y#| or » then break end
    if at > now then catch_up(at) end
    if «low < b#| and » then break end -- no limit needs the first block
    local base = fields('<d', text, from + 1)
    local after, sum = fields('<I5I4', text, #text - 8)
    local last = base + after
    if «f# <= now - y#| or » then
      -- leave removes the units that have left a window: the units that were spent up to the
      -- instant "old". It returns nothing if the next unit is not in the same block.
      local function leave(b, u, s, old)
        local t, first, begin = text, from + 17, base
        if b <= high then
          t, first = call('HGET', KEYS[¤], string.format('%.0f:%.0f', no, b)), 18
          if not t or string.byte(t) ~= 110 then return end
          begin = fields('<d', t, 2)
        end
        local lo, hi, gone, time = 0, math.floor((#t - first + 1) / 9) + 1, u
        while hi - lo > 1 do
          local mid = math.floor((lo + hi) / 2)
          local e, n = fields('<I5I4', t, first + 9 * mid - 9)
          if n <= u or begin + e <= old then lo, gone = mid, n else hi, time = mid, begin + e end
        end
        if time and gone >= u then return gone, s - gone + u, time end
      end
      «if f# <= now - y# then u#, s#, f# = leave(b#, u#, s#, now - y#) end if not u# then break end|
      »
    end
    if «s# + cost > x# + 1| or » then break end
    reply¤ = pack('<«ddddddd|»', «6, at, 0, 1, f#, s#, last»)
    if «s# + cost > x#| or » then
      wait = 1
    elseif wait == 0 then
      if now - base >= 2 ^ 40 or sum + cost >= 2 ^ 32 then break end
      local till, size = #text, len + 9
      if last == now then till, size = till - 9, len elseif len >= 17 + 64 * 9 then break end
      if expires < now + keep then
        expires = now + keep + slack
        ttl¤ = math.ceil((keep + slack) / 1000) + 1
      end
      value¤ = pack('<c0I4ddI4I4I4«ddddI4|»c0I5I4', ids, no, now, expires, low, high, size, «k#, s# + cost, f#, u#, b#», string.sub(text, from, till), now - base, sum + cost)
    end
  end
end
-- write
call('HSET', KEYS[¤], 'h', value¤)
if ttl¤ then call('PEXPIRE', KEYS[¤], ttl¤) end
