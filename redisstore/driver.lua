-- One transaction. KEYS are the values that hold its states. ARGV has, in µs, the
-- longest wait (-1: decide, and spend nothing; -2: forget), and the shortest. Then of each
-- charge: its algorithm and its key, as indexes,
-- the id of its limit, cost, quota, period in µs, burst, the edges of a
-- calendar, and when the units of a negative cost were to be spent (0: give back
-- the newest), and what undoes them: of a log, the instant before which nobody need
-- go then; else the state after them, that before, and when it is as good as new.
-- A value holds the fixed-size states of all limits of a rule and key:
-- where they share an instant, "=id:b,id:b;" and in 16 columns each at and every a,
-- else "id at a b;" and so on. If an algorithm reads s.till, "~" and when the state is
-- as good as new follow its b. A log has a value of its own.
--
-- The reply is the time, whether all was spent, and the states as they were.
-- What follows from them is arithmetic, and done where there is more time.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local _
local within = tonumber(ARGV[1])
local wait = tonumber(ARGV[2])
local forget = within == -2
local n = (#ARGV - 2) / 10

local charges, values = {}, {}
for i = 1, n do
  local arg = 10 * i - 7
  local key = tonumber(ARGV[arg + 1])
  local c = {
    now = now,
    algorithm = algorithms[tonumber(ARGV[arg])],
    id = ARGV[arg + 2],
    cost = tonumber(ARGV[arg + 3]),
    quota = tonumber(ARGV[arg + 4]),
    period = tonumber(ARGV[arg + 5]),
    burst = tonumber(ARGV[arg + 6]),
    edges = ARGV[arg + 7],
    when = tonumber(ARGV[arg + 8]),
    undo = ARGV[arg + 9],
    at = 0, a = 0, b = 0, till = 0,
  }
  charges[i] = c
  local value = values[key]
  if not value then
    value = {key = KEYS[key], charges = {}, log = c.algorithm.log}
    values[key] = value
  end
  value.charges[#value.charges + 1] = c
end

for _, value in ipairs(values) do
  if value.log then
    open_logs(value, value.charges)
  else
    value.text = redis.call('GET', value.key)
    if value.text then
      local states = {}
      if string.sub(value.text, 1, 1) == '=' then
        local from = string.find(value.text, ';', 1, true)
        local at = string.sub(value.text, from + 1, from + 16)
        for id, b in string.gmatch(string.sub(value.text, 2, from), '([^:]+):([^,;]+)[,;]') do
          from = from + 16
          states[id] = {at, string.sub(value.text, from + 1, from + 16), b}
        end
      else
        for id, at, a, b in string.gmatch(value.text, '([^ ;]+) (%d+) (%-?%d+) ([^ ;]+);') do
          states[id] = {at, a, b}
        end
      end
      value.states = states
      for _, c in ipairs(value.charges) do
        local s = states[c.id]
        if s then
          c.found = s[1] .. ' ' .. s[2] .. ' ' .. s[3]
          c.at, c.a = tonumber(s[1]), tonumber(s[2])
          local b, till = string.match(s[3], '^(%-?%d+)~?(%d*)$')
          c.b, c.till = tonumber(b), tonumber(till) or 0
        end
      end
    end
  end
end

-- undone returns the state before a reservation, if the present one is that after it.
local function undone(c)
  local at, a, b, to, to_a, to_b, till = string.match(c.undo, '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%-?%d+) (%-?%d+) (%d+)$')
  if not at or tonumber(at) ~= c.at or tonumber(a) ~= c.a or tonumber(b) ~= c.b then return end
  return tonumber(to), tonumber(to_a), tonumber(to_b), till - to
end

local fits = true
for i = 1, n do
  local c = charges[i]
  local f = c.algorithm
  local retry = 0
  c.target = math.max(now, c.at)
  if forget then
    c.cost, c.target, c.reset = -1, now, 0
  elseif c.cost > 0 and within > 0 and f.queue then
    local room
    retry, room = f.queue(c, now, now, c.cost, c.quota, c.period, c.burst, c.edges)
    fits = fits and room
    if retry == 0 then
      c.target = now
      _, c.next_a, c.next_b, c.reset, c.newest = f.take(c, now, c.cost, c.quota, c.period, c.burst, c.edges)
    end
  elseif c.cost < 0 and c.when > 0 and undone(c) then
    c.target, c.next_a, c.next_b, c.reset = undone(c)
  elseif c.cost < 0 and c.when > 0 and f.cancel then
    if f.log then
      f.take(c, c.target, 0, c.quota, c.period)
      f.cancel(c, now, c.when, -c.cost, tonumber(c.undo))
    else
      local at
      at, c.next_a, c.next_b, c.reset = f.cancel(c, now, c.when, -c.cost, c.quota, c.period, c.burst, c.edges)
      if at then
        c.target = at
      else
        c.cost = 0 -- nothing of it is left
      end
    end
  elseif c.cost ~= 0 or f.log then
    retry, c.next_a, c.next_b, c.reset, c.newest = f.take(c, c.target, c.cost, c.quota, c.period, c.burst, c.edges)
    if retry < 0 then
      fits = false
    elseif c.cost > 0 then
      retry = retry + c.target - now
    end
  end
  if retry > wait then wait = retry end
end

local spent = forget or fits and wait <= within
if spent and wait > 0 then
  local target = now + wait
  for i = 1, n do
    local c = charges[i]
    local f = c.algorithm
    if c.cost > 0 then
      c.target = target
      if within > 0 and f.queue then
        c.newest = nil
        _, _, c.target, c.next_a, c.next_b, c.reset = f.queue(c, now, target, c.cost, c.quota, c.period, c.burst, c.edges)
      elseif not f.log then
        _, c.next_a, c.next_b, c.reset, c.newest = f.take(c, target, c.cost, c.quota, c.period, c.burst, c.edges)
      end
    end
  end
end

local reply = {t[1], t[2], spent and 1 or 0}
for i = 1, n do
  local c = charges[i]
  if c.algorithm.log and not forget then
    reply[i + 3] = describe_log(c, spent and wait > 0 and c.cost > 0 and c.target)
  else
    reply[i + 3] = c.found or false
  end
end
if not spent then return reply end

for _, value in ipairs(values) do
  if value.log then
    spend_logs(value, now, forget)
  else
    local reset, changed, alike = 0, false, true
    local texts, ids, as = {}, {}, {}
    local at
    for _, c in ipairs(value.charges) do
      if c.cost ~= 0 then
        changed = true
        local left = c.target - now + c.reset
        if left > 0 then
          local newest = c.newest or c.target
          local b = string.format('%.0f', c.next_b)
          if c.algorithm.till then b = string.format('%s~%.0f', b, c.target + c.reset) end
          texts[#texts + 1] = string.format('%s %.0f %.0f %s;', c.id, newest, c.next_a, b)
          ids[#texts] = c.id .. ':' .. b
          as[#texts] = string.format('%16.0f', c.next_a)
          alike = alike and (at or newest) == newest
          at = newest
        end
        reset = math.max(reset, left)
        if value.states then value.states[c.id] = nil end
      end
    end
    if changed then
      local ttl = ms(reset)
      if value.states and next(value.states) then -- of other limits, or looked at only
        for id, s in pairs(value.states) do
          texts[#texts + 1] = string.format('%s %.0f %.0f %s;', id, s[1] + 0, s[2] + 0, s[3])
        end
        alike = false
        ttl = math.max(ttl, redis.call('PTTL', value.key))
      end
      if #texts > 0 then
        local text = table.concat(texts)
        if alike then
          text = '=' .. table.concat(ids, ',') .. ';' .. string.format('%16.0f', at) .. table.concat(as)
        end
        redis.call('SET', value.key, text, 'PX', ttl)
      elseif value.text then
        redis.call('DEL', value.key)
      end
    end
  end
end
return reply
