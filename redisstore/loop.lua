-- This part decides in a loop what direct.lua and logs.lua decide without one. It is for
-- transactions with too many charges for those files, and for shapes beyond maxScripts. Where those
-- files break, the loop returns nothing, and general.lua decides. For the arguments see
-- general.lua. The loop makes few tables and texts, because Redis takes about 1 ns for each byte of
-- garbage.
local function loop()
  local fields, pack, call, args = struct.unpack, struct.pack, redis.call, ARGV[#ARGV]
  local list = table.unpack or unpack -- Lua 5.4 has only table.unpack
  local longest, n, width = fields('<ddd', args)
  if longest < 0 or n ~= 1 or width > 7 then return end
  local row = 25 + 8 * #KEYS
  local edges_from, wait, reply, texts, ttls, hashes = 2 * #KEYS + 1, 0, {''}, {}, {}, {}

  -- meters evaluates the charges for value k, whose states are not logs. If they can be evaluated,
  -- it returns true, and otherwise what loop must return. It unpacks up to 50 states at a time,
  -- because Lua limits the number of results.
  local function meters(k, ids, charges)
    local text = call('GET', KEYS[k])
    if text and (#text ~= #ids + 32 * charges or string.find(text, ids, 1, true) ~= 1) then return end
    local states_text = text or string.rep('\0', 32 * charges)
    reply[k + 1] = states_text
    if wait ~= 0 and not catch_up then return true end
    local from, new_text, old, last, changed = text and #ids + 1 or 1, ids, 0, now, false
    for first = 1, charges, 50 do
      local size = math.min(50, charges - first + 1)
      local form = string.rep('dddd', size)
      local states = {fields('<' .. form, states_text, from)}
      for i = 1, 4 * size, 4 do
        local index, cost, quota, period, burst, of, headroom = fields('<ddddddd', args, row)
        local at, a, b, till, f, edges = states[i], states[i + 1], states[i + 2], states[i + 3], algorithms[index]
        if f.queue and longest > 0 then return end
        if f.edged then edges, edges_from = ARGV[edges_from], edges_from + 1 end
        if at > now then
          if not catch_up or k > 1 or first + i > 2 then return end
          catch_up(at)
        end
        if till > old then old = till end
        if wait == 0 and cost ~= 0 then
          local next_at, next_a, next_b, next_till
          if cost < 0 and of > 0 and f.cancel then
            next_at, next_a, next_b, next_till = f.cancel(at, a, b, till, now, of, -cost, quota, period, burst, edges, 0)
          else
            if cost > 0 and headroom > 0 then
              wait = f.take(at, a, b, till, now, cost + headroom, quota, period, burst, edges, 0)
            end
            if wait == 0 then
              wait, next_at, next_a, next_b, next_till = f.take(at, a, b, till, now, cost, quota, period, burst, edges, 0)
            end
          end
          if next_at then
            changed, till = true, next_till
            if till <= now then next_at, next_a, next_b, next_till = 0, 0, 0, 0 end
            states[i], states[i + 1], states[i + 2], states[i + 3] = next_at, next_a, next_b, next_till
          end
        end
        if wait ~= 0 and not catch_up then return true end -- a later state cannot change the decision
        row = row + 56
        if till > last then last = till end
      end
      from = from + 32 * size
      new_text = pack('<c0' .. form, new_text, list(states, 1, 4 * size))
    end
    if not changed then return true end
    if last - now > 4503599627370496 then return -k end -- see general.lua
    if last > now then
      texts[k], last = new_text, last + -last % 1000000
      if last ~= old + -old % 1000000 then ttls[k] = ms(last - now) end
    elseif text then
      texts[k] = ''
    end
    return true
  end

  -- logs does the same for a value with logs. It writes the same texts as logs.lua.
  local function logs(k, ids, charges)
    local key, limits, replies, cost, keep = KEYS[k], {}, {}, nil, 0
    local text = call('HGET', key, 'h')
    if text and string.find(text, ids, 1, true) ~= 1 then return end
    local no, at, expires, low, high, len, base, after, sum = 1, 0, 0, 1, 0, 17
    local from, needed, fits = #ids + 33 + 36 * charges, not text, true
    if text then
      no, at, expires, low, high, len = fields('<I4ddI4I4I4', text, #ids + 1)
      if #text ~= from + len - 1 or string.byte(text, from) ~= 110 then return end
      if at > now then
        if not catch_up or k > 1 then return end
        catch_up(at)
      end
      base, after, sum = fields('<d', text, from + 1), fields('<I5I4', text, #text - 8)
    end
    for i = 1, charges do
      local _, units, quota, period = fields('<dddd', args, row)
      row, cost, keep = row + 56, cost or units, math.max(keep, period)
      if units ~= cost or cost <= 0 then return end
      local spent, start, u, b = 0, now, 0, 1
      if text then
        local kept
        kept, spent, start, u, b = fields('<ddddI4', text, #ids + 36 * i - 3)
        if kept ~= period then return end
        needed = needed or b <= low
        if start <= now - period then
          u, spent, start = leave(key, text, from, base, no, high, b, u, spent, now - period)
          if not u then return end
        end
        replies[i] = pack('<ddddddd', 6, at, 0, 1, start, spent, base + after)
        if spent + cost > quota + 1 then return end
        fits = fits and spent + cost <= quota
      elseif cost > quota then
        return
      end
      if fits and wait == 0 then limits[i] = pack('<ddddI4', period, spent + cost, start, u, b) end
    end
    if not needed then return end -- no limit needs the first block
    reply[k + 1] = text and table.concat(replies) or string.rep('\0', 8 * charges)
    if not fits then wait = 1 end
    if wait ~= 0 then return true end
    local spare = math.ceil(keep / 8)
    if not text or expires < now + keep then
      expires, ttls[k] = now + keep + spare, ms(keep + spare)
    end
    local block = text and string.sub(text, from) or pack('<c0dd', 'n', now, 0)
    if not text then
      base, sum, at = now, 0
    elseif base + after == now then
      block = string.sub(block, 1, -10)
    elseif #block >= 17 + 64 * 9 then
      return
    end
    if now - base >= 2 ^ 40 or sum + cost >= 2 ^ 32 then return end
    texts[k] = pack('<c0I4ddI4I4I4c0c0I5I4', ids, no, now, expires, low, high, #block + 9,
      table.concat(limits), block, now - base, sum + cost)
    hashes[k] = true
    return true
  end

  for k = 1, #KEYS do
    local first, charges, meter = row, fields('<d', args, 17 + 8 * k), algorithms[(fields('<d', args, row))]
    local done = (meter and meters or logs)(k, ARGV[2 * k - 1], charges)
    if done ~= true then return done end
    row = first + charges * 56
  end
  if wait ~= 0 and longest > 0 then return end
  for k, text in pairs(wait == 0 and texts or {}) do
    if hashes[k] then
      call('HSET', KEYS[k], 'h', text)
      if ttls[k] then call('PEXPIRE', KEYS[k], ttls[k]) end
    elseif text == '' then
      call('DEL', KEYS[k])
    elseif ttls[k] then
      call('PSETEX', KEYS[k], ttls[k], text)
    else
      call('SETRANGE', KEYS[k], '0', text)
    end
  end
  reply[1] = t[1] .. ' ' .. t[2] .. (wait == 0 and ' 1;' or ' 0;')
  return table.concat(reply)
end
if not rows then
  local reply = loop()
  if reply then return reply end
end
