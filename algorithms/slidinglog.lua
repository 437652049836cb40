-- The sliding log, in a list. The limits of one rule and key share it as long as
-- they are charged alike, which is always, unless somebody goes to lengths. Then
-- it holds the time of each unit, newest first, and last a header: "=" and the
-- limits that share it. Where they part, or a charge is too large to be kept
-- unit by unit, it holds one text: "*" and the marks of each limit. Where the
-- newest instant is not that of a unit, because units were given back, "@" and it
-- stand behind the header; else "#", the newest instant, and how many of the newest
-- units each limit had in its window then, at most. Last stand "&" and for how long the
-- units of each limit are kept: for its period, or the longest one under which they
-- were charged, until none of them is as young as that.

local most_units = 1000

-- texts: "*" then for each limit "id;frontier;keep;time:count,time:count,|"
local function parse_text(text)
  local logs = {}
  for id, frontier, keep, marks in string.gmatch(text, '([^;|*]+);(%d+);(%d+);([^|]*)|') do
    local log = {frontier = tonumber(frontier), keep = tonumber(keep), times = {}, sums = {}, len = 0}
    for time, count in string.gmatch(marks, '(%d+):(%d+),') do
      log.len = log.len + tonumber(count)
      log.times[#log.times + 1] = tonumber(time)
      log.sums[#log.sums + 1] = log.len
    end
    logs[id] = log
  end
  return logs
end

local function held(header)
  local at = string.match(header, '@(%d+)&')
  return at and tonumber(at) or 0
end

-- keeps returns for how long the units of each limit are kept.
local function keeps(header)
  local list = {}
  for keep in string.gmatch(string.match(header, '&.*') or '', '%d+') do list[#list + 1] = tonumber(keep) end
  return list
end

local function parse_list(key, header)
  local units = redis.call('LRANGE', key, 0, -2)
  local logs = {}
  local keep, n = keeps(header), 0
  for id in string.gmatch(string.gsub(header, '[@#].*', ''), '[^=,]+') do
    n = n + 1
    local log = {frontier = 0, keep = keep[n] or 0, times = {}, sums = {}, len = #units}
    for i = #units, 1, -1 do
      log.times[#log.times + 1] = tonumber(units[i])
      log.sums[#log.sums + 1] = #log.times
    end
    log.frontier = math.max(held(header), log.times[#log.times] or 0)
    logs[id] = log
  end
  return logs
end

-- unit returns when the k-th newest unit was spent, 1 ≤ k ≤ len.
local function unit(log, k)
  if log.times then
    local sum = log.len - k + 1
    local lo, hi = 1, #log.sums
    while lo < hi do
      local mid = math.floor((lo + hi) / 2)
      if log.sums[mid] >= sum then hi = mid else lo = mid + 1 end
    end
    return log.times[lo]
  end
  local time = log.units[k]
  if not time then
    time = tonumber(redis.call('LINDEX', log.key, k - 1))
    log.units[k] = time
  end
  return time
end

-- count returns how many units were spent after old. likely is where to look
-- first.
local function count(log, old, likely)
  local lo, hi = 0, log.len + 1
  local probe, after = math.min(likely, log.len), math.min(likely, log.len) + 1
  while hi - lo > 1 do
    if probe <= lo or probe >= hi then probe = math.floor((lo + hi) / 2) end
    if unit(log, probe) > old then lo = probe else hi = probe end
    probe, after = after, 0
  end
  return lo
end

-- keep_for notes for how long the units of a limit are kept, see keepFor in
-- slidinglog.go.
local function keep_for(group, c, keep)
  c.keep, c.kept = c.period, keep
  if keep > c.period and c.log.len > 0 and unit(c.log, 1) + keep > math.max(c.now, c.log.frontier) then
    c.keep = keep
    group.alike = group.alike and (c.cost >= 0 or #group.charges == 1)
  end
end

-- kept returns how many units are: if another limit needs them for longer, more than
-- there are in the window.
local function kept(c)
  return count(c.log, c.now - c.keep, c.spent)
end

-- open_logs reads the list at group.key for the charges that share it.
local function open_logs(group, charges)
  local key = group.key
  local header = '='
  local alike = true
  for i, c in ipairs(charges) do
    header = header .. (i > 1 and ',' or '') .. c.id
    alike = alike and c.cost == charges[1].cost and (c.cost >= 0 or c.when == charges[1].when)
  end
  group.header, group.alike = header, alike
  local found = redis.call('LINDEX', key, -1)
  if not found or string.gsub(found, '[@#].*', '') == header then
    group.shared, group.found = true, found
    group.fresh = not found
    local log = {len = 0, frontier = 0, key = key, units = {}}
    if found then
      log.len = redis.call('LLEN', key) - 1
      log.frontier = held(found)
      if log.len > 0 then log.frontier = math.max(log.frontier, unit(log, 1)) end
    end
    local keep = keeps(found or '')
    for i, c in ipairs(charges) do
      c.log = log
      c.at = log.frontier
      keep_for(group, c, keep[i] or 0)
    end
    return
  end
  if string.sub(found, 1, 1) == '*' then
    group.logs = parse_text(found)
  else
    group.logs = parse_list(key, found)
  end
  for _, c in ipairs(charges) do
    group.logs[c.id] = group.logs[c.id] or {frontier = 0, keep = 0, times = {}, sums = {}, len = 0}
    c.log = group.logs[c.id]
    c.at = c.log.frontier
    keep_for(group, c, c.log.keep)
  end
end

-- take returns the µs from at until the cost fits, or −1.
local function take(c, at, cost, quota, period)
  c.at = at
  c.spent = count(c.log, at - period, quota)
  if cost > quota then return -1 end
  local over = c.spent + cost - quota
  if cost <= 0 or over <= 0 then return 0 end
  return unit(c.log, c.spent - over + 1) + period - at
end

-- recent returns how many units are in the window of now. What is reserved may have
-- an earlier window, but may be cancelled.
local function recent(c, now)
  if c.at <= now and c.keep == c.period then return c.spent end
  return count(c.log, now - c.keep, c.spent)
end

-- cancel finds the units of the instant of that were to be spent then, counted
-- from the oldest of all recent ones: from c.first on, c.gone of them at most n. If
-- nobody is after them nobody need go after floor, where there is one.
local function cancel(c, now, of, n, floor)
  local log = c.log
  c.all = recent(c, now)
  local newer = math.min(count(log, of, 1), c.all)
  local since = math.min(count(log, of - 1, newer + 1), c.all)
  c.of, c.same = of, math.max(0, since - newer)
  c.gone = math.min(n, c.same)
  c.first = c.all - since + 1
  c.frontier = log.frontier
  if floor and of == log.frontier then
    local newest = 0
    if c.all > c.gone then newest = unit(log, c.gone > 0 and newer == 0 and c.same == c.gone and c.gone + 1 or 1) end
    c.frontier = math.max(floor, newest)
  end
end

-- describe_log returns all that an explanation of the charge can ask for: the
-- newest instant, and of some units when they were spent, counted from the
-- oldest in the window.
local function describe_log(c, target)
  local log, n = c.log, c.of and c.all or c.spent
  local mixed = c.keep > c.period
  if mixed and not c.of then n = kept(c) end
  local marks = {log.frontier, mixed and n > 0 and unit(log, 1) + c.keep or 0}
  local function mark(k) -- the k-th oldest of n
    k = math.max(1, math.min(k, n))
    marks[#marks + 1] = k
    marks[#marks + 1] = unit(log, n - k + 1)
  end
  if n > 0 then
    mark(1)
    mark(n)
    mark(n + 1 - c.quota)
    if mixed then
      mark(n - c.spent)
      mark(n - c.spent + 1)
    end
    if c.cost > 0 then mark(n + c.cost - c.quota) end
    if c.of then
      local old = math.max(c.now, c.frontier) - c.period
      local spent = count(log, old, n)
      if c.of > old then spent = spent - c.gone end
      local function left(k) -- the k-th oldest of those that stay
        if k >= c.first then k = k + c.gone end
        mark(k)
      end
      local out = n - c.gone - spent
      if out > 0 then left(out) end
      left(out + 1)
      left(n - c.gone + 1 - c.quota)
      left(n - c.gone)
      if c.same > 0 then
        if c.first > 1 then mark(c.first - 1) end
        mark(c.first + c.same - 1)
        mark(c.first + c.same)
      end
    elseif c.cost < 0 then
      local left = n - math.min(-c.cost, c.spent)
      if left >= 1 then
        mark(left)
        mark(left + 1 - c.quota)
      end
    end
    if target then
      local then_spent = count(log, target - c.period, n)
      mark(n - then_spent)
      mark(n - then_spent + 1)
    end
  end
  return marks
end

-- keep_of returns for how long the units of a limit are kept from now on: a
-- cancellation that finds none of its units changes nothing.
local function keep_of(c)
  return c.of and c.gone == 0 and c.kept or c.keep
end

-- header_of returns the header with what follows the limits.
local function header_of(group, text)
  local list = {}
  for i, c in ipairs(group.charges) do list[i] = string.format('%.0f', keep_of(c)) end
  return group.header .. text .. '&' .. table.concat(list, ' ')
end

local function push_units(group, time, n, now, longest)
  local key = group.key
  local text = string.format('%.0f', time)
  local header = '#' .. text
  for _, c in ipairs(group.charges) do
    header = string.format('%s %.0f', header, (c.keep > c.period and kept(c) or c.spent) + n)
  end
  header = header_of(group, header)
  if group.fresh then
    redis.call('RPUSH', key, header)
  else
    redis.call('LSET', key, -1, header)
  end
  if n == 1 then
    redis.call('LPUSH', key, text)
  else
    local units = {}
    for i = 1, n do units[i] = text end
    redis.call('LPUSH', key, unpack(units))
  end
  local len = group.charges[1].log.len
  local spent = longest.keep > longest.period and kept(longest) or longest.spent
  if len - spent > 16 + spent / 16 then
    if time > now then spent = kept(longest) end
    redis.call('LTRIM', key, 0, spent + n - 1)
    redis.call('RPUSH', key, header)
  end
  redis.call('PEXPIRE', key, ms(time + longest.keep - now))
end

-- hold keeps the newest instant of a list that units were taken from, for as
-- long as it matters. newest is that of the units left, or nil.
local function hold(group, at, newest, now, longest)
  local reset = math.max(at, newest and newest + longest.keep or 0) - now
  if reset <= 0 then
    redis.call('DEL', group.key)
    return
  end
  redis.call('LSET', group.key, -1, header_of(group, string.format('@%.0f', at)))
  redis.call('PEXPIRE', group.key, ms(reset))
end

-- drop_units gives back the newest n.
local function drop_units(group, n, now, longest)
  local log = longest.log
  n = math.min(n, longest.spent)
  local newest = n < recent(longest, now) and unit(log, n + 1) or nil
  if not newest then n = log.len end -- what is left is older than any window
  redis.call('LTRIM', group.key, n, -1)
  hold(group, math.max(now, log.frontier), newest, now, longest)
end

-- drop_instant gives back what was to be spent at the instant longest.of.
local function drop_instant(group, now, longest)
  if longest.gone > 0 then
    redis.call('LREM', group.key, longest.gone, string.format('%.0f', longest.of))
  end
  local newest
  if longest.gone < longest.all then newest = tonumber(redis.call('LINDEX', group.key, 0)) end
  hold(group, longest.frontier, newest, now, longest)
end

-- spend_text brings the marks of a charge up to date.
local function spend_text(c, at)
  local log = c.log
  if c.cost > 0 then
    log.len = log.len + c.cost
    log.times[#log.times + 1] = at
    log.sums[#log.sums + 1] = log.len
    log.frontier = at
    return
  end
  if c.of then
    local times, sums, sum, before, left = {}, {}, 0, 0, c.gone
    for i, time in ipairs(log.times) do
      local units = log.sums[i] - before
      before = log.sums[i]
      if time == c.of then
        local k = math.min(left, units)
        left, units = left - k, units - k
      end
      if units > 0 then
        sum = sum + units
        times[#times + 1], sums[#sums + 1] = time, sum
      end
    end
    log.times, log.sums, log.len, log.frontier = times, sums, sum, c.frontier
    return
  end
  local sum = log.len - math.min(-c.cost, c.spent)
  while #log.sums > 0 and (log.sums[#log.sums - 1] or 0) >= sum do
    log.times[#log.times] = nil
    log.sums[#log.sums] = nil
  end
  if #log.sums > 0 then log.sums[#log.sums] = sum end
  log.len = sum
  log.frontier = c.at
end

local function write_text(group, now)
  local texts, reset = {'*'}, 0
  for _, c in ipairs(group.charges) do
    c.log.known = true
    if c.cost ~= 0 then c.log.old, c.log.keep = now - c.keep, keep_of(c) end
    reset = math.max(reset, c.log.frontier + c.keep - now)
  end
  local others = false -- whose periods are not known here
  for id, log in pairs(group.logs) do
    others = others or not log.known
    local marks = {}
    local before = 0
    for i, time in ipairs(log.times) do
      if time > (log.old or 0) then
        marks[#marks + 1] = string.format('%.0f:%.0f,', time, log.sums[i] - before)
        if #marks == 100 then marks = {table.concat(marks)} end -- more at a time are too many for miniredis
      end
      before = log.sums[i]
    end
    if #marks > 0 or log.frontier > now then
      texts[#texts + 1] = string.format('%s;%.0f;%.0f;%s|', id, log.frontier, log.keep, table.concat(marks))
    end
  end
  local ttl = ms(reset)
  if others then ttl = math.max(ttl, redis.call('PTTL', group.key)) end
  redis.call('DEL', group.key)
  if #texts > 1 then
    redis.call('RPUSH', group.key, table.concat(texts))
    redis.call('PEXPIRE', group.key, ttl)
  end
end

-- spend_logs spends what the charges of a group cost; c.target is when. Or it has
-- the group forget their logs.
local function spend_logs(group, now, forget)
  if forget then
    for _, c in ipairs(group.charges) do
      if group.logs then group.logs[c.id] = nil end
    end
    if not group.logs then
      redis.call('DEL', group.key)
    else
      group.charges = {}
      write_text(group, now)
    end
    return
  end
  local longest, changed = group.charges[1], false
  for _, c in ipairs(group.charges) do
    if c.keep > longest.keep then longest = c end
    changed = changed or c.cost > 0 or c.cost < 0 and (c.gone ~= 0 or c.frontier ~= c.log.frontier)
  end
  if not changed then return end
  local cost = longest.cost
  if group.shared and group.alike and math.abs(cost) <= most_units then
    if cost > 0 then
      push_units(group, longest.target, cost, now, longest)
    elseif not group.fresh then
      if longest.of then
        drop_instant(group, now, longest)
      else
        drop_units(group, -cost, now, longest)
      end
    end
    return
  end
  if group.shared then
    group.logs = group.fresh and {} or parse_list(group.key, group.found)
    for _, c in ipairs(group.charges) do
      c.log = group.logs[c.id] or {frontier = 0, keep = c.keep, times = {}, sums = {}, len = 0}
      group.logs[c.id] = c.log
    end
  end
  for _, c in ipairs(group.charges) do
    if c.cost ~= 0 then spend_text(c, c.target) end
  end
  write_text(group, now)
end
