-- These lines decide the charges of one value whose states are no logs, if the value has only
-- their states. No state has a C, because its value would have other ids. Each charge has the
-- same cost, or the cost 0. `break` leaves the transaction to general.lua. For the signs that are
-- no Lua see expand.
do
  text¤ = call('GET', KEYS[¤])
  local ids = IDS
  if text¤ and (#text¤ ~= #ids + 32 * («1| + ») or find(text¤, ids, 1, true) ~= 1) then break end
  reply¤ = text¤ or string.rep('\0', 32 * («1| + »)) -- a key never seen
  local «at#, a#, b#, till#» = fields('<«dddd|»', reply¤, text¤ and #ids + 1 or 1)
  if «at# > now| or » then
    if not catch_up or ¤ > 1 then break end
    catch_up(math.max(«at#»)) -- see servertime.go
  end
  local old, changed = 0, false «?or true| »
  «if till# > old then old = till# end|
  »
  do
    local «NUMBERS», cost, longest = numbers(PACKED)
    within = longest
    «<do local at, a, b, till = cancel@(at#, a#, b#, till#, now, INSTANT, -cost, x#, y#, z#, EDGES, 0) if at then changed, at#, a#, b#, till# = true, at, a, b, till if till <= now then at#, a#, b#, till# = 0, 0, 0, 0 end end end|
    »
    repeat
      «?if wait ~= 0 then break end wait, at#, a#, b#, till# = take@(at#, a#, b#, till#, now, cost, x#, y#, z#, EDGES, 0)|
      »
    until true
  end
  if wait == 0 and changed then
    local last = now
    «!if till# > last then last = till# end|
    »
    «?if till# > last then last = till# elseif till# <= now then at#, a#, b#, till# = 0, 0, 0, 0 end|
    »
    if last > now then
      if last - now > 4503599627370496 then return -¤ end -- see general.lua
      value¤ = pack('<c0«dddd|»', ids, «at#, a#, b#, till#»)
      last = last + -last % 1000000
      if last ~= old + -old % 1000000 then -- otherwise the TTL already ends then: see general.lua
        local ms = last - now + 1999
        ttl¤ = string.format('%d', (ms - ms % 1000) / 1000)
      end
    else
      value¤ = ''
    end
  end
end
-- write
if value¤ == '' then
  if text¤ then call('DEL', KEYS[¤]) end
elseif ttl¤ then
  call('PSETEX', KEYS[¤], ttl¤, value¤)
elseif value¤ then
  call('SETRANGE', KEYS[¤], '0', value¤) -- as long as the old value; SET with KEEPTTL would take 0.3 µs more
end
