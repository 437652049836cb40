-- This file stores the logs of a key in a hash. An entry of a log is an instant and the units
-- that were spent then. Limits of the same rule and key share a log if they are charged alike,
-- and have separate logs otherwise. A log records where the window of each limit began when
-- the log was last written.
--
-- The field "h" holds, for each log:
--   the ids of its limits, its number, the newest instant, when the value expires, the numbers
--   of its first and last closed block, and the length of the open block;
--   for each limit, how many µs the limit keeps its units, how many units it has, when the first
--   of these units was spent, how many units precede that first unit in its block, and the
--   number of that block;
--   the open block, which has the newest entries.
-- If a log has entries in the future, the time of the write follows, for SendTime.
-- Each closed block is a separate field, whose name consists of two numbers: "log:block".
--
-- A block consists of the instant of its first entry, its range, and its entries. An entry
-- consists of the µs since that instant, and the units of the block up to and including the
-- entry. Let p be the largest power of 2 that divides the number of a closed block. The block's
-- range is the number of units in p blocks, of which this one is the first. A search therefore
-- takes few steps, however long the log is, and a change of a block changes few other ranges.
--
-- Measured in one run, on a machine with other load: a check took 15 µs, both with 1,000 and with
-- 100,000 entries, and a refund of the oldest units took 120 µs. With a string of all entries, a
-- check took 13 µs with 20 entries, but 79 and 25,000 µs with so many. With a list, the two took
-- 20 and 10 µs under one limit, and an entry took 18 bytes instead of 11. However, a list would
-- need a call for each step of the search for the window of each limit, and a refund would have
-- to change every later sum.
local log_form, limit_form, head_form = '<I4ddI4I4I4', '<ddddI4', '<dd'
local log_size, limit_size, entries_from = 32, 36, 18
local entry_forms, entry_sizes = {n = '<I5I4', w = '<dd'}, {n = 9, w = 16}
local pack, fields, unpack = struct.pack, struct.unpack, table.unpack or unpack -- Lua 5.4 has only table.unpack
local entries_of_block = 64

local function parse_block(text)
  if text == '' then return {kind = 'n', base = 0, range = 0, text = '', n = 0} end
  local o = {kind = string.sub(text, 1, 1)}
  o.base, o.range = fields(head_form, text, 2)
  o.text = string.sub(text, entries_from)
  o.n = math.floor(#o.text / entry_sizes[o.kind])
  return o
end

local function block_text(o)
  return o.kind .. pack(head_form, o.base, o.range) .. o.text
end

-- entry returns two numbers of entry i: the µs since the block began, and the units of the block up
-- to and including that entry.
local function entry(o, i)
  return fields(entry_forms[o.kind], o.text, (i - 1) * entry_sizes[o.kind] + 1)
end

local function total(o)
  if o.n == 0 then return 0 end
  local _, sum = entry(o, o.n)
  return sum
end

-- The function cut keeps only the first n entries of a block. put appends an entry.
local function cut(o, n)
  o.n, o.text = n, string.sub(o.text, 1, n * entry_sizes[o.kind])
end

local function put(o, after, sum)
  if o.kind == 'n' and (after >= 2 ^ 40 or sum >= 2 ^ 32) then
    local list = {}
    for i = 1, o.n do
      local a, s = entry(o, i)
      list[i] = pack(entry_forms.w, a, s)
    end
    o.kind, o.text = 'w', table.concat(list)
  end
  o.n, o.text = o.n + 1, o.text .. pack(entry_forms[o.kind], after, sum)
end

local function field(log, b) return string.format('%.0f:%.0f', log.no, b) end

local function block(log, b)
  local o = log.blocks[b]
  if not o then
    o = parse_block(b > log.high and log.text or redis.call('HGET', log.key, field(log, b)))
    log.blocks[b] = o
  end
  return o
end

local function save(log, b) redis.call('HSET', log.key, field(log, b), block_text(block(log, b))) end

local function newest(log)
  local o = block(log, log.high + 1)
  return o.n > 0 and o.base + entry(o, o.n) or 0
end

-- power returns the largest power of 2 that divides b.
local function power(b)
  local p = 1
  while b % (2 * p) == 0 do p = 2 * p end
  return p
end

-- spread adds n to the range of each earlier block whose range includes block b.
local function spread(log, b, n)
  b = b - power(b)
  while b >= log.low and b > 0 do
    block(log, b).range = block(log, b).range + n
    save(log, b)
    b = b - power(b)
  end
end

-- skip goes from block b to later blocks while pass(block, units) returns true. It passes the
-- number of a later block, and how many units there are between the beginnings of block b and of
-- that block. skip returns the arguments of the last call that returned true, or b and 0.
local function skip(log, b, pass)
  local left, step, high = 0, 1, log.high
  while b <= high do
    step = power(b)
    local after, units = math.min(b + step, high + 1), block(log, b).range
    if not pass(after, left + units) then break end
    b, left = after, left + units
  end
  if b > high then return b, left end
  local units = block(log, b).range
  while step > 1 do
    step = step / 2
    local after = b + step
    if after <= high + 1 then
      local later = after <= high and block(log, after).range or 0
      if pass(after, left + units - later) then
        b, left, units = after, left + units - later, later
        if b > high then break end
      else
        units = units - later
      end
    end
  end
  return b, left
end

-- The function since finds the first unit that is newer than the instant `old`. The search begins
-- after the first u units of block b. since returns the block of the unit, how many units of that
-- block precede the unit, and how many units the search has skipped.
local function since(log, b, u, old)
  local passed = 0
  if b <= log.high and block(log, b + 1).base <= old then
    passed = total(block(log, b)) - u
    local left
    b, left = skip(log, b + 1, function(after) return block(log, after).base <= old end)
    passed, u = passed + left, 0
  end
  local o = block(log, b)
  local lo, hi, sum = 0, o.n + 1, 0
  while hi - lo > 1 do
    local mid = math.floor((lo + hi) / 2)
    local after, s = entry(o, mid)
    if o.base + after <= old then lo, sum = mid, s else hi = mid end
  end
  if sum > u then passed, u = passed + sum - u, sum end
  return b, u, passed
end

-- The function unit finds the k-th unit after the first u units of block b. It returns when that
-- unit was spent, and the numbers of the unit's block and entry.
local function unit(log, b, u, k)
  local o = block(log, b)
  local here = total(o) - u
  if k > here then
    k = k - here
    local left
    b, left = skip(log, b + 1, function(_, units) return units < k end)
    o, u, k = block(log, b), 0, k - left
  end
  local lo, hi = 0, o.n
  while hi - lo > 1 do
    local mid = math.floor((lo + hi) / 2)
    local _, sum = entry(o, mid)
    if sum >= u + k then hi = mid else lo = mid end
  end
  return o.base + entry(o, hi), b, hi
end

local function new_log(group, no)
  return {no = no, at = 0, low = 1, high = 0, text = '', key = group.key, blocks = {}, limits = {}}
end

-- The function natural reports whether x is an integer from 0 to 2^53 − 1.
local function natural(x) return x >= 0 and x < 9007199254740992 and x % 1 == 0 end

-- parse_logs parses the field "h" into group, and reports whether the field is well formed. The
-- first and last closed block of each log must exist, and no time may exceed what limits and waits
-- allow.
local function parse_logs(group, text, now)
  local from = 1
  while from + 8 <= #text do
    local log, len, _ = new_log(group)
    local stop = string.find(text, ';', from, true)
    if not stop or #text < stop + log_size then return false end
    log.ids = string.sub(text, from, stop)
    from = stop + 1
    log.no, log.at, _, log.low, log.high, len = fields(log_form, text, from)
    from = from + log_size
    if not natural(log.at) or log.at - now > 2 ^ 51 or log.low < 1 or log.low > log.high + 1 then return false end
    for _, b in ipairs(log.low <= log.high and {log.low, log.high} or {}) do
      if not redis.call('HGET', group.key, field(log, b)) then return false end
    end
    for id in string.gmatch(log.ids, '[^,;]+') do
      if #text < from + limit_size - 1 then return false end
      local m = {id = id, log = log}
      m.keep, m.spent, m.first, m.u, m.b = fields(limit_form, text, from)
      if not (natural(m.keep) and m.keep <= 2 ^ 50 and natural(m.spent) and natural(m.first) and natural(m.u)) or m.b < log.low or m.b > log.high + 1 then return false end
      from = from + limit_size
      log.limits[#log.limits + 1] = m
      group.limits[id] = m
    end
    log.text = string.sub(text, from, from + len - 1)
    from = from + len
    group.logs[#group.logs + 1] = log
  end
  if from + 7 == #text then
    group.written = fields('<d', text, from)
    return true
  end
  return from == #text + 1
end

-- open_logs reads the logs at group.key for the charges of a transaction, and reports
-- whether the logs are well formed.
local function open_logs(group, charges)
  group.logs, group.limits, group.written = {}, {}, nil
  local text = redis.call('HGET', group.key, 'h')
  if text and not parse_logs(group, text, charges[1].now) then return false end
  for _, c in ipairs(charges) do
    local m = group.limits[c.id]
    c.limit, c.log = m, m and m.log or new_log(group)
    c.at = c.log.at
  end
  return true
end

-- window describes the units of a limit that are newer than the instant `old`. It returns
-- the block of the first of these units, how many units of that block precede the first
-- one, how many units there are, and when the first one was spent.
local function window(c, old)
  local m = c.limit
  if not m or m.spent == 0 then return c.log.high + 1, total(block(c.log, c.log.high + 1)), 0, 0 end
  if m.first > old then return m.b, m.u, m.spent, m.first end
  local b, u, passed = since(m.log, m.b, m.u, old)
  if passed >= m.spent then return b, u, 0, 0 end
  return b, u, m.spent - passed, (unit(m.log, b, u, 1))
end

-- take returns how many µs after the instant `at` the cost fits, or −1.
local function take(c, at, cost, quota, period)
  c.at = at
  c.b, c.u, c.spent, c.first = window(c, at - period)
  if cost > quota then return -1 end
  local over = c.spent + cost - quota
  if cost <= 0 or over <= 0 then return 0 end
  return (over == 1 and c.first or unit(c.log, c.b, c.u, over)) + period - at
end

-- The function recent returns the results of window for the units that the limit keeps now. A
-- reservation is decided in a later window, from which some of these units may be missing. Those
-- count again if the reservation is cancelled.
local function recent(c)
  if c.at <= c.now then return c.b, c.u, c.spent, c.first end
  return window(c, c.now - c.period)
end

-- cancel finds the units that were spent at the instant `of`. c.same is how many there are, c.left
-- is how many older units the window has, and c.gone is how many units are refunded: c.same, but at
-- most n. If the units found are the newest, and floor is not nil, c.frontier becomes the newest
-- instant that is left, but not less than floor.
local function cancel(c, now, of, n, floor)
  local log = c.log
  local b, u, all = recent(c)
  c.of, c.all = of, all
  local from, after, left = since(log, b, u, of - 1)
  local _, _, same = since(log, from, after, of)
  c.from, c.after, c.left, c.same, c.gone = from, after, left, same, math.min(n, same)
  c.frontier = log.at
  if floor and of == log.at then
    local last = 0
    if all > c.gone then
      last = newest(log)
      if last == of and c.gone == same then last = unit(log, b, u, left) end
    end
    c.frontier = math.max(floor, last)
  end
end

-- describe_log returns the numbers of a log that Go needs to decide the charge. The first number is
-- the newest instant, and the second is 0. Pairs of numbers follow. A pair k, t says that the k-th
-- oldest unit of the window was spent at the time t. If some charges of a batch do not fit, `more`
-- is how many units the other charges spend together.
local function describe_log(c, target, more)
  local log = c.log
  local b, u, n, first = c.b, c.u, c.spent, c.first
  if c.of then b, u, n, first = recent(c) end
  local reply = {log.at, 0}
  if n == 0 then return reply end
  local last = newest(log)
  reply[3], reply[4], reply[5], reply[6] = 1, first, n, last
  local function mark(k) -- adds the pair for the k-th oldest of n units
    if k > 1 and k < n then
      reply[#reply + 1] = k
      reply[#reply + 1] = unit(log, b, u, k)
    end
  end
  mark(n + 1 - c.quota)
  if c.cost > 0 then
    mark(n + c.cost - c.quota)
    if more then mark(n + c.cost - c.quota + more) end
    mark(n + c.cost - c.quota + 1) -- Go needs this unit if the charge is forced
  end
  if c.of then
    local old = math.max(c.now, c.frontier) - c.period
    local _, _, out = since(log, b, u, old)
    if c.of <= old then out = out - c.gone end
    local function left(k) -- marks the k-th oldest of the units that are left
      if k > c.left then k = k + c.gone end
      mark(k)
    end
    left(out)
    left(out + 1)
    left(n - c.gone + 1 - c.quota)
    left(n - c.gone)
    if c.same > 0 then
      mark(c.left)
      mark(c.left + c.same)
      mark(c.left + c.same + 1)
    end
  elseif c.cost < 0 then
    local left = n - math.min(-c.cost, c.spent)
    mark(left)
    mark(left + 1 - c.quota)
  end
  if target then
    local _, _, out = since(log, b, u, target - c.period)
    mark(out)
    mark(out + 1)
  end
  return reply
end

-- append adds units that are spent at the instant `at`, which is never earlier than the newest
-- entry.
local function append(log, at, units)
  local b = log.high + 1
  local o = block(log, b)
  local sum = total(o)
  if o.n > 0 and o.base + entry(o, o.n) == at then
    cut(o, o.n - 1)
    put(o, at - o.base, sum + units)
    return
  end
  if o.n >= entries_of_block then
    o.range, log.high = sum, b
    save(log, b)
    spread(log, b, sum)
    b, sum = b + 1, 0
    o = parse_block('')
    log.blocks[b] = o
  end
  if o.n == 0 then o.base, o.kind = at, 'n' end
  put(o, at - o.base, sum + units)
end

-- While the open block is empty and a closed block is left, reopen turns the last closed block into
-- the open block.
local function reopen(log)
  while block(log, log.high + 1).n == 0 and log.high >= log.low do
    local b = log.high
    local o = block(log, b)
    spread(log, b, -total(o))
    redis.call('HDEL', log.key, field(log, b))
    log.blocks[b + 1], log.high = nil, b - 1
  end
  for _, m in ipairs(log.limits) do
    local last = total(block(log, log.high + 1))
    if m.b > log.high + 1 then m.b, m.u = log.high + 1, last end
    if m.b == log.high + 1 then m.u = math.min(m.u, last) end
  end
end

-- delete deletes the blocks `from` to `to` of a log, up to 1,000 blocks with each call to Redis.
local function delete(log, from, to)
  for b = from, to, 1000 do
    local list = {}
    for k = b, math.min(b + 999, to) do list[#list + 1] = field(log, k) end
    redis.call('HDEL', log.key, unpack(list))
  end
end

-- drop removes the given number of units from the end of a log. The block of the newest unit that
-- is left becomes the open block.
local function drop(log, units)
  local function upto(from, b) -- returns how many units the blocks `from` to b have
    local _, n = skip(log, from, function(after) return after <= b end)
    return n
  end
  local high = log.high
  local from, left = high + 1, total(block(log, high + 1)) - units
  if left <= 0 then from, left = log.low, left + upto(log.low, high + 1) end
  local b, at, sum, i = from, 0, 0, 1
  if left > 0 then
    at, b, i = unit(log, from, 0, left)
    sum = left - upto(from, b)
  end
  local o = block(log, b)
  if b <= high then
    local ranges, k = {}, b - power(b)
    while k >= log.low and k > 0 do
      ranges[k] = upto(k, b)
      k = k - power(k)
    end
    delete(log, b, high)
    log.high, log.blocks = b - 1, {[b] = o}
    for k, range in pairs(ranges) do
      block(log, k).range = range
      save(log, k)
    end
  end
  cut(o, i - 1)
  if sum > 0 then put(o, at - o.base, sum) end
  reopen(log)
end

-- remove removes the given number of units from the entry that follows the first u units of block
-- b.
local function remove(log, b, u, units)
  local _, found, i = unit(log, b, u, 1)
  local o = block(log, found)
  local list, before, upto = {}, 0
  if i > 1 then before = select(2, entry(o, i - 1)) end
  for k = i, o.n do
    local after, sum = entry(o, k)
    upto = upto or sum
    if sum - units > before then list[#list + 1] = {after, sum - units} end
  end
  cut(o, i - 1)
  for _, e in ipairs(list) do put(o, e[1], e[2]) end
  for _, m in ipairs(log.limits) do -- the removed units may have preceded the limit's window
    if m.b == found then m.u = m.u - math.max(0, units - math.max(0, upto - m.u)) end
  end
  if found <= log.high then
    o.range = o.range - units
    save(log, found)
    spread(log, found, -units)
  end
  reopen(log)
end

-- fate returns a text that describes how a charge changes the log. Limits that share a log continue
-- to share it if their charges have the same fate.
local function fate(c)
  if not c or c.cost == 0 then return '' end
  if c.cost > 0 then return string.format('+%.0f', c.cost) .. (c.forced or '') end
  if c.of then return string.format('%.0f %.0f %.0f', c.cost, c.of, c.frontier) end
  -- The charge refunds only units in its window, and the newest of these first.
  local units = math.min(-c.cost, c.spent)
  local _, _, all = recent(c)
  return string.format('-%.0f', units == all and -c.cost or units)
end

-- copy copies the blocks `from` to `last` of a log to the log `to`.
local function copy(log, to, from, last)
  for b = from, last, 500 do
    local names, list = {}, {}
    for k = b, math.min(b + 499, last) do names[#names + 1] = field(log, k) end
    for i, text in ipairs(redis.call('HMGET', log.key, unpack(names))) do
      list[2 * i - 1], list[2 * i] = field(to, b + i - 1), text
    end
    redis.call('HSET', log.key, unpack(list))
  end
end

-- The function part splits each log whose limits have different fates: one fate keeps the log, and
-- each other fate gets a copy.
local function part(group)
  local last = 0
  for _, log in ipairs(group.logs) do last = math.max(last, log.no) end
  for i = 1, #group.logs do
    local log = group.logs[i]
    local limits, parts, alike = log.limits, {}, true
    for _, m in ipairs(limits) do alike = alike and m.fate == limits[1].fate end
    for _, m in ipairs(alike and {} or limits) do
      local f = m.fate or ''
      local to = parts[f]
      if not to then
        to = log
        if next(parts) then
          last = last + 1
          to = new_log(group, last)
          to.at, to.high, to.text, to.low = log.at, log.high, log.text, log.high + 1
          group.logs[#group.logs + 1] = to
        end
        to.limits, to.ids, parts[f] = {}, nil, to
      end
      to.limits[#to.limits + 1] = m
      m.log = to
      if to ~= log then
        copy(log, to, m.b, to.low - 1)
        to.low = math.min(to.low, m.b)
      end
    end
  end
end

-- last_of returns the instant after which no unit of a log counts.
local function last_of(log)
  local till, last = log.at, newest(log)
  for _, m in ipairs(log.limits) do
    if m.spent > 0 then till = math.max(till, last + m.keep) end
  end
  return till
end

-- join finds a log for a charge whose limit has none: the log of limits that are charged alike, or
-- a new log. The limit's window begins with the next unit.
local function join(group, c)
  local log
  for _, l in ipairs(group.logs) do
    log = log or #l.limits > 0 and l.limits[1].fate == fate(c) and l
  end
  if not log then
    local no = 1
    for _, l in ipairs(group.logs) do no = math.max(no, l.no + 1) end
    log = new_log(group, no)
    group.logs[#group.logs + 1] = log
  end
  local b = log.high + 1
  local m = {id = c.id, log = log, keep = c.period, spent = 0, first = 0, b = b, u = total(block(log, b)), fate = fate(c), charge = c}
  log.limits[#log.limits + 1], log.ids = m, nil
  c.limit, c.log, c.fresh = m, log, true
end

-- leave removes a limit from its log.
local function leave(m)
  local left = {}
  for _, other in ipairs(m.log.limits) do
    if other ~= m then left[#left + 1] = other end
  end
  m.log.limits, m.log.ids = left, nil
end

-- spend applies the charges of a log, all of which have the same fate as the charge c.
local function spend(log, c, now)
  local most = 0
  for _, m in ipairs(log.limits) do
    local k = m.charge
    if k.of then
      most = math.max(most, k.gone)
    elseif c.cost < 0 then
      most = math.max(most, math.min(-k.cost, k.spent))
    end
    if not k.fresh then
      m.b, m.u, m.spent, m.first = recent(k)
    end
    if c.cost > 0 then
      if m.spent == 0 then
        m.first, m.b = k.target, log.high + 1
        m.u = total(block(log, m.b))
      end
      m.spent = m.spent + c.cost
    end
  end
  if c.cost > 0 then
    append(log, c.target, c.cost)
    log.at = c.target
    local low = log.high + 1
    for _, m in ipairs(log.limits) do low = math.min(low, m.b) end
    if low > log.low then
      low = math.min(low, log.low + 128)
      delete(log, log.low, low - 1)
      log.low = low
    end
    return
  end
  for _, m in ipairs(log.limits) do
    local k = m.charge
    m.spent, m.first = m.spent - (k.of and k.gone or math.min(most, m.spent)), 0
  end
  if not c.of then
    log.at = math.max(now, log.at)
    drop(log, most)
    return
  end
  log.at = 0
  local longest
  for _, m in ipairs(log.limits) do
    log.at = math.max(log.at, m.charge.frontier)
    if m.charge.gone == most then longest = m.charge end
  end
  if most > 0 then remove(log, longest.from, longest.after, most) end
  if newest(log) > log.at then -- none of the log's units counts under any of its limits
    delete(log, log.low, log.high)
    cut(block(log, log.high + 1), 0)
    log.low = log.high + 1
    for _, m in ipairs(log.limits) do m.b, m.u = log.low, 0 end
  end
end

-- write stores the logs. A log that is not charged now is kept for the longest period of the
-- charges after its last unit has stopped counting, because the clock may be set back.
local function write(group, now, longest)
  local texts, till, lasts = {}, now, {}
  for i, log in ipairs(group.logs) do
    lasts[i] = #log.limits > 0 and last_of(log) or 0
    till = math.max(till, lasts[i])
  end
  local ahead
  local expires = till + longest / 8 -- later than necessary, so that few charges must extend it
  for i, log in ipairs(group.logs) do
    local l = lasts[i]
    if l > now or not log.spent and l > 0 and l + longest > now then
      if not log.ids then
        local ids = {}
        for i, m in ipairs(log.limits) do ids[i] = m.id end
        log.ids = table.concat(ids, ',') .. ';'
      end
      local o = block(log, log.high + 1)
      local text = o.n > 0 and block_text(o) or ''
      texts[#texts + 1] = log.ids .. pack(log_form, log.no, log.at, expires, log.low, log.high, #text)
      ahead = ahead or log.at > now
      for _, m in ipairs(log.limits) do
        texts[#texts + 1] = pack(limit_form, m.keep, m.spent, m.first, m.u, m.b)
      end
      texts[#texts + 1] = text
    else
      delete(log, log.low, log.high)
    end
  end
  if #texts == 0 then
    redis.call('DEL', group.key)
    return
  end
  if ahead then texts[#texts + 1] = pack('<d', now) end
  redis.call('HSET', group.key, 'h', table.concat(texts))
  redis.call('PEXPIRE', group.key, ms(expires - now))
end

-- spend_logs spends each charge c of a group at the instant c.target. If forget is true,
-- spend_logs removes the limits of these charges from the logs instead.
local function spend_logs(group, now, forget)
  local changed, longest = forget, 0
  for _, c in ipairs(group.charges) do
    local m = c.limit
    longest = math.max(longest, c.period)
    if forget then
      if m then leave(m) end
    else
      changed = changed or c.cost > 0 or m and c.cost < 0 and (not c.of or c.gone > 0 or c.frontier ~= c.log.at)
      if m then m.fate, m.charge = fate(c), c end
    end
  end
  if not changed then return end
  if not forget then
    for _, log in ipairs(group.logs) do
      if last_of(log) <= now then -- the limits of this log may share a log with others again
        for _, m in ipairs(log.limits) do
          if m.charge and m.charge.cost > 0 then
            m.charge.limit = nil
            leave(m)
          end
        end
      end
    end
    part(group)
    for _, c in ipairs(group.charges) do
      if c.cost > 0 and not c.limit then join(group, c) end
    end
    for _, log in ipairs(group.logs) do
      local m = log.limits[1]
      log.spent = m and m.charge and m.charge.cost ~= 0
      if log.spent then spend(log, m.charge, now) end
    end
    table.sort(group.logs, function(a, b) return a.spent and not b.spent end) -- logs.lua expects this order
  end
  write(group, now, longest)
end
