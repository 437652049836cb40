-- These lines decide charges of one rule and key that all have the same cost or the cost 0,
-- if the value holds only their states. If they cannot decide, they prepare the rows that
-- general.lua reads. ARGV[2] has numbers in MessagePack: the longest wait, the cost, and the
-- three numbers of each limit. If ARGV[2] is empty, general.lua decides. Go repeats the text
-- in guillemets for each charge: see expand.
if ARGV[2] ~= '' then
  TAKES
  local longest, cost, «x#, y#, z#» = cmsgpack.unpack(ARGV[2])
  local «at#, a#, b#, till#» = «0, 0, 0, 0»
  local ids, key, call = ARGV[1], KEYS[1], redis.call
  local text, size = call('GET', key), #ids
  local known = not text
  if text and #text == size + 32 * («1| + ») and string.find(text, ids, 1, true) == 1 then
    «at#, a#, b#, till#» = struct.unpack('<«dddd|»', text, size + 1)
    known = «at# <= now| and »
  end
  if known then
    local wait, old = nil, 0
    «if till# > old then old = till# end|
    »
    repeat
      «?TAKE if wait ~= 0 then break end|
      »
    until true
    if wait == 0 then
      local last = now
      «!if till# > last then last = till# end|
      »
      «?if till# > last then last = till# elseif till# <= now then at#, a#, b#, till# = 0, 0, 0, 0 end|
      »
      if last > now then
        if last - now > 4503599627370496 then return -1 end -- see general.lua
        local value = struct.pack('<c0«dddd|»', ids, «at#, a#, b#, till#»)
        last = last + -last % 1000000
        if last == old + -old % 1000000 then -- the TTL already ends then: see general.lua
          call('SET', key, value, 'KEEPTTL') -- PSETEX would take 0.4 µs more
        else
          local ttl = last - now + 1999
          call('PSETEX', key, string.format('%d', (ttl - ttl % 1000) / 1000), value) -- %d of Lua 5.4 takes no fraction
        end
      elseif text then
        call('DEL', key)
      end
      return t[1] .. ' ' .. t[2] .. ' 1;' .. (text or '')
    elseif longest == 0 then
      return t[1] .. ' ' .. t[2] .. ' 0;' .. (text or '')
    end
  end
  rows, within, times, edges_from = {«{@, 1, $, x#, y#, z#}»}, longest, 1, 3
end
