-- These lines decide charges of sliding logs that all have the same cost and do not wait,
-- if the key was never seen, or if the value has one log with only their limits. They use
-- the format that slidinglog.lua defines. They leave to that file what happens once in a
-- block: that the block is full, or that no limit needs it any more. ARGV[2] is as in
-- direct.lua.
if ARGV[2] ~= '' then
  local longest, cost, «x#, y#, z#» = cmsgpack.unpack(ARGV[2])
  local ids, key, call = ARGV[1], KEYS[1], redis.call
  local text, size = call('HGET', key, 'h'), #ids
  local keep, slack = math.max(«y#»)
  slack = math.ceil(keep / 8) -- so that few charges must lengthen the TTL of the value
  repeat
    if not text then
      if «cost > x#| or » or cost >= 2 ^ 32 then break end
      call('HSET', key, 'h', struct.pack('<c0I4ddI4I4I4«ddddI4|»c0ddI5I4', ids, 1, now, now + keep + slack, 1, 0, 26, «y#, cost, now, 0, 1», 'n', now, 0, 0, cost))
      call('PEXPIRE', key, math.ceil((keep + slack) / 1000) + 1)
      return t[1] .. ' ' .. t[2] .. ' 1;' .. struct.pack('<«d|»', «0»)
    end
    if string.find(text, ids, 1, true) ~= 1 then break end
    local no, at, expires, low, high, len, «k#, s#, f#, u#, b#» = struct.unpack('<I4ddI4I4I4«ddddI4|»', text, size + 1)
    local from = size + 33 + 36 * («1| + »)
    if at > now or #text ~= from + len - 1 or string.byte(text, from) ~= 110 or «k# ~= y#| or » then break end
    if «low < b#| and » then break end -- no limit needs the first block
    local base = struct.unpack('<d', text, from + 1)
    local after, sum = struct.unpack('<I5I4', text, #text - 8)
    local last = base + after
    if «f# <= now - y#| or » then
      -- leave removes the units that have left a window: the units that were spent up to the
      -- instant "old". It returns nothing if the next unit is not in the same block.
      local function leave(b, u, s, old)
        local t, first, begin = text, from + 17, base
        if b <= high then
          t, first = call('HGET', key, string.format('%.0f:%.0f', no, b)), 18
          if not t or string.byte(t) ~= 110 then return end
          begin = struct.unpack('<d', t, 2)
        end
        local lo, hi, gone, time = 0, math.floor((#t - first + 1) / 9) + 1, u
        while hi - lo > 1 do
          local mid = math.floor((lo + hi) / 2)
          local e, n = struct.unpack('<I5I4', t, first + 9 * mid - 9)
          if n <= u or begin + e <= old then lo, gone = mid, n else hi, time = mid, begin + e end
        end
        if time and gone >= u then return gone, s - gone + u, time end
      end
      «if f# <= now - y# then u#, s#, f# = leave(b#, u#, s#, now - y#) end if not u# then break end|
      »
    end
    if «s# + cost > x# + 1| or » then break end
    if «s# + cost > x#| or » then
      if longest > 0 then break end
      return t[1] .. ' ' .. t[2] .. ' 0;' .. struct.pack('<«ddddddd|»', «6, at, 0, 1, f#, s#, last»)
    end
    if now - base >= 2 ^ 40 or sum + cost >= 2 ^ 32 then break end
    local till, size = #text, len + 9
    if last == now then till, size = till - 9, len elseif len >= 17 + 64 * 9 then break end
    if expires < now + keep then
      expires = now + keep + slack
      call('PEXPIRE', key, math.ceil((keep + slack) / 1000) + 1)
    end
    call('HSET', key, 'h', struct.pack('<c0I4ddI4I4I4«ddddI4|»c0I5I4', ids, no, now, expires, low, high, size, «k#, s# + cost, f#, u#, b#», string.sub(text, from, till), now - base, sum + cost))
    return t[1] .. ' ' .. t[2] .. ' 1;' .. struct.pack('<«ddddddd|»', «6, at, 0, 1, f#, s#, last»)
  until true
  rows, within, times, edges_from = {«{@, 1, cost, x#, y#, z#}»}, longest, 1, 3
end
