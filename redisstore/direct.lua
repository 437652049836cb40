-- This part evaluates the charges for one value, if the value begins with the states of these
-- charges and the states are not logs. No state has a C, because the ids in the value would then be
-- different. Each charge has the same cost, or a cost of 0. `break` leaves the transaction to
-- general.lua. This file is a template: see expand.go.
do
  local ids, kept, rest = IDS -- kept: until when the value keeps other states; rest: these states
  local text, from = call('GET', KEY) or ids .. string.rep('\0', 32 * CHARGES), #ids + 1 -- zeros: a new key
  if #text ~= #ids + 32 * CHARGES or find(text, ids, 1, true) ~= 1 then
    -- Other states may follow, under limits that were removed or that only other processes have.
    -- general.lua writes the states of the charges before these.
    local last, own = #ids < #text and find(text, ';', #ids, true), string.sub(ids, 1, -2) .. ','
    local c = string.match(own, '[^,]+,$') -- if the last state has a C, the same id follows once more
    if not last or find(text, own, 1, true) ~= 1 or find(text, c, #ids + 1, true) == #ids + 1 or
      find(text, string.sub(c, 1, -2) .. ';', #ids + 1, true) == #ids + 1 then break end
    ids, rest = string.sub(text, 1, last), string.sub(text, last + 1 + 32 * CHARGES)
    text, from = string.sub(text, last + 1, last + 32 * CHARGES), 1
    if #rest == 0 or #rest % 32 ~= 0 then break end
  end
  reply_v = text
  local LIST{at_i, a_i, b_i, till_i} = fields('<TIMES{dddd}', text, from)
  if ANY{at_i > now} then
    if not catch_up or VALUE > 1 then break end
    catch_up(math.max(LIST{at_i})) -- see servertime.go
  end
  local old, changed = 0, SPENDS
  -- each charge
  if till_i > old then old = till_i end
  -- end
  do
    local LIST{NUMBERS}, cost, longest = fields('<TIMES{FORM}dd', PACKED)
    within = longest
    -- each charge that cancels
    do
      local at, a, b, till = CANCEL(at_i, a_i, b_i, till_i, now, of_i, -cost, x_i, y_i, z_i, EDGES, 0)
      if at then
        changed, at_i, a_i, b_i, till_i = true, at, a, b, till
        if till <= now then at_i, a_i, b_i, till_i = 0, 0, 0, 0 end
      end
    end
    -- end
    repeat
      -- each charge that spends
      if wait ~= 0 then break end
      TAKE
      -- end
    until true
  end
  if wait == 0 and changed then
    local last = now
    -- each charge that looks or cancels
    if till_i > last then last = till_i end
    -- end
    -- each charge that spends
    if till_i > last then last = till_i elseif till_i <= now then at_i, a_i, b_i, till_i = 0, 0, 0, 0 end
    -- end
    if rest then
      kept = now
      for i = 25, #rest, 32 do
        local till = fields('<d', rest, i)
        if till <= now - 1000000 or till - now > 4503599627370496 then kept = nil break end -- see general.lua
        if till > kept then kept = till end
      end
      if not kept then break end
    end
    if last > now then
      if last - now > 4503599627370496 then return -VALUE end -- see general.lua
      value_v = pack('<c0TIMES{dddd}', ids, LIST{at_i, a_i, b_i, till_i})
      last = last + -last % 1000000
      if rest and kept >= last then
        if call('PTTL', KEY) < (last - now) / 1000 + slack_ms then break end -- see general.lua
      elseif rest or last ~= old + -old % 1000000 then -- otherwise the TTL already ends at the right time: see general.lua
        local ms = last - now + 1999
        ttl_v = string.format('%d', (ms - ms % 1000) / 1000 + slack_ms)
        if rest then value_v = value_v .. rest end
      end
    elseif rest then
      break
    else
      value_v = ''
    end
  end
end
-- write
if value_v == '' then
  call('DEL', KEY)
elseif ttl_v then
  call('PSETEX', KEY, ttl_v, value_v)
elseif value_v then
  call('SETRANGE', KEY, '0', value_v) -- the old value has the same length; SET with KEEPTTL would take 0.3 µs longer
end
