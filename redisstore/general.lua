-- This part evaluates all transactions that the preceding parts do not evaluate: batches, and
-- transactions with other states in a value, with waits, or with other modes.
--
-- For each key, ARGV has two texts: the ids of the key's charges, in the same form as in a value,
-- and the numbers of these charges if the direct part should decide. Then come the edges for each
-- charge whose algorithm has edges. If there are no such numbers, the last text has packed doubles:
-- the longest wait in µs (-1: decide and spend nothing; -2: forget; -3: also spend what does not
-- fit), how often to spend the charges (-n: as often as they fit now, at most n times, as one
-- charge), how many numbers a row has, the number of charges for each key, and a row for each
-- charge. A row has the index of the algorithm, the cost, the three numbers of the limit, the
-- instant of the units that a negative cost refunds (0: the newest), and the headroom. If a row has
-- 15 numbers, the last eight undo the charge that spent those units. They are at, a and b of the
-- state after that charge, and at, a, b, till and c of the state before it. For a log, they contain
-- only the instant of the state before the charge, or -1.
local width
if not rows then
  local text = ARGV[#ARGV]
  within, times, width = struct.unpack('<ddd', text)
  local form = '<' .. string.rep('d', width)
  rows = {}
  for from = 25 + 8 * #KEYS, #text, 8 * width do rows[#rows + 1] = {struct.unpack(form, text, from)} end
end
local forget, forced = within == -2, within == -3

-- read returns a table of the states in a value, by id, and a list of the ids, in order. If the
-- value is damaged, read returns nothing. A state consists of at, a, b, till and c. If c is not 0,
-- the value stores it in a second state with the same id. A value with a state in the future ends
-- with the time at which the value was written, for SendTime. read returns this time too.
local function read(text)
  local from = string.find(text, ';', 1, true) or 0
  local states, ids = {}, {}
  for id in string.gmatch(string.sub(text, 1, from), '([^,;]+)[,;]') do
    if #text < from + 32 then return end
    local s = {struct.unpack('<dddd', text, from + 1)}
    for i = 1, 4 do
      if s[i] % 1 ~= 0 or math.abs(s[i]) >= 9007199254740992 then return end
    end
    -- A state expires at most 3 * 2^50 µs after now, because a wait lasts up to 2^50 µs, and two
    -- windows last up to 2^51 µs.
    if s[4] - now > 4503599627370496 then return end -- 2^52 µs
    from = from + 32
    if states[id] then
      states[id][5] = s[1]
    else
      ids[#ids + 1] = id
      s[5] = 0
      states[id] = s
    end
  end
  if #ids == 0 then return end
  if from == #text then return states, ids end
  if from + 8 == #text then return states, ids, (struct.unpack('<d', text, from + 1)) end
end

local charges, values, edges_from = {}, {}, 2 * #KEYS + 1
for k, key in ipairs(KEYS) do
  local value = {key = key, charges = {}, states = {}, ids = {}}
  for id in string.gmatch(ARGV[2 * k - 1], '[^,;]+') do
    local row = rows[#charges + 1]
    local c = {
      algorithm = algorithms[row[1]], id = id, cost = row[2], when = row[6], undo = width == 15 and row,
      quota = row[3], period = row[4], burst = row[5], headroom = row[7], edges = '', at = 0,
    }
    if c.algorithm.edged then
      c.edges = ARGV[edges_from]
      edges_from = edges_from + 1
    end
    charges[#charges + 1], value.charges[#value.charges + 1] = c, c
  end
  value.log = value.charges[1].algorithm.open
  values[k] = value
end
repeat
  local newest = now -- see servertime.go
  for k, value in ipairs(values) do
    for _, c in ipairs(value.charges) do c.now = now end
    if value.log then
      if not value.log(value, value.charges) then return -k end
    else
      value.text = redis.call('GET', value.key)
      if value.text then
        value.states, value.ids, value.written = read(value.text)
        if not value.ids then return -k end
      end
      for _, c in ipairs(value.charges) do
        c.found = value.states[c.id] or {0, 0, 0, 0, 0}
        c.state = c.found
      end
    end
    for _, c in ipairs(catch_up and value.charges or {}) do
      local at = c.state and c.state[1] or c.at
      newest = math.max(newest, math.min(at, value.written or at))
    end
  end
  local behind = newest > now
  if behind then catch_up(newest) end
until not behind

-- limit returns the last arguments for the functions of an algorithm. next_state makes a state from
-- the results of such a function, or returns nothing if there are none.
local function limit(c) return c.quota, c.period, c.burst, c.edges, c.state[5] end
local function next_state(at, a, b, till, more) return at and {at, a, b, till, more or 0} end

-- take decides a charge at the instant `at` and returns the wait. It sets c.next to the next state.
local function take(c, at, cost)
  local s, f = c.state, c.algorithm
  if f.open then return (f.take(c, at, cost, c.quota, c.period)) end
  local wait, next_at, a, b, till, more = f.take(s[1], s[2], s[3], s[4], at, cost, limit(c))
  if wait == 0 then c.next = next_state(next_at, a, b, till, more) end
  return wait
end

local function queue(c, slot, cost)
  local s = c.state
  local wait, room, at, a, b, till, more = c.algorithm.queue(s[1], s[2], s[3], s[4], now, slot, cost, limit(c))
  if room then c.next = next_state(at, a, b, till, more) end
  return wait, room
end

-- cancel refunds the units of c that were spent at the instant c.when.
local function cancel(c)
  local s, f, u = c.state, c.algorithm, c.undo
  if f.open then
    f.take(c, c.target, 0, c.quota, c.period)
    f.cancel(c, now, c.when, -c.cost, u and u[11] >= 0 and u[11])
  elseif u and u[8] > 0 and u[8] == s[1] and u[9] == s[2] and u[10] == s[3] then
    c.next = {u[11], u[12], u[13], u[14], u[15]}
  elseif f.cancel then
    c.next = next_state(f.cancel(s[1], s[2], s[3], s[4], now, c.when, -c.cost, limit(c)))
  else
    take(c, c.target, c.cost)
  end
end

-- force spends a charge even if it does not fit: see Transaction.force in package quota.
local function force(c)
  local f, s = c.algorithm, c.state
  if f.force then
    c.next = next_state(f.force(s[1], s[2], s[3], s[4], c.target, c.cost, limit(c)))
    return
  end
  local quota, most = c.quota, 562949953421312 -- 2^49
  c.cost, c.quota = math.min(c.cost, most), 2 * most
  c.forced = string.format(' at %.0f', c.target) -- forced charges may be spent at different instants
  if take(c, c.target, c.cost) ~= 0 then c.cost = 0 end
  c.quota = quota
end

local spent = 0

-- decide returns the wait after which the charges fit another n times, or nothing if they never
-- fit. States other than logs change between two calls to decide. Logs are written only at the end,
-- so for a log, decide adds the units spent so far to the cost.
local function decide(n)
  local longest, fits = 0, true
  for _, c in ipairs(charges) do
    local cost, wait, room = c.cost * (c.algorithm.open and spent + n or n), 0, true
    c.next = nil
    c.target = math.max(now, c.state and c.state[1] or c.at)
    if forget then
      c.next = {0, 0, 0, 0, 0}
    elseif forced and cost > 0 then
      force(c)
    elseif cost > 0 and within > 0 and c.algorithm.queue then
      wait, room = queue(c, now, cost)
      if wait == 0 then take(c, now, cost) end
    elseif cost < 0 and c.when > 0 then
      cancel(c)
    elseif cost ~= 0 or c.algorithm.open then
      if cost > 0 and c.headroom > 0 then wait = take(c, c.target, cost + c.headroom) end
      if wait == 0 then wait = take(c, c.target, cost) end
      room = wait >= 0
      if cost > 0 then wait = wait + c.target - now end
    end
    fits = fits and room
    if wait > longest then longest = wait end
  end
  if fits then return longest end
end

-- reserve spends the charges at a later instant, and returns whether they fit.
local function reserve(at)
  for _, c in ipairs(charges) do
    if c.cost > 0 then
      c.target = at
      if c.algorithm.queue then
        queue(c, at, c.cost)
      elseif not c.algorithm.open and take(c, at, c.cost) ~= 0 then
        return false
      end
    end
  end
  return true
end

local granted = 1
if times < 0 then
  local most, try = -times, -times
  while granted < most do
    if decide(try) == 0 then granted = try else most = try - 1 end
    try = math.ceil((granted + most) / 2)
  end
  for _, c in ipairs(charges) do c.cost = c.cost * granted end
  times = 1
end

-- At first the charges are spent only once, because a state that was written under a larger limit
-- may admit them only once. After that, they fit n times together if they fit n times one by one.
local wait, left, try, refused = 0, times, 1, false
repeat
  wait = decide(try)
  if forget or forced or wait and wait <= within and (wait == 0 or reserve(now + wait)) then
    for _, c in ipairs(charges) do
      c.state, c.changed = c.next or c.state, c.changed or c.next
    end
    spent, left = spent + try, left - try
    try = refused and math.ceil(left / 2) or left
  else
    refused, left = true, try - 1
    try = math.ceil(left / 2)
  end
until left == 0

local reply = {t[1] .. ' ' .. t[2] .. ' ' .. string.format('%.0f', spent * granted) .. ';'}
for _, c in ipairs(charges) do
  if c.algorithm.open then
    local waits = spent > 0 and wait and wait > 0 and c.cost > 0
    local log = forget and {} or c.algorithm.describe(c, waits and c.target, spent < times and spent * c.cost)
    if times > 1 then c.cost = c.cost * spent end
    reply[#reply + 1] = struct.pack('<d', #log)
    for i = 1, #log do reply[#reply + 1] = struct.pack('<d', log[i]) end
  else
    local s = c.found -- till is never negative, and an algorithm that uses c does not need till
    reply[#reply + 1] = struct.pack('<dddd', s[1], s[2], s[3], s[5] > 0 and -s[5] or s[4])
  end
  if #reply > 100 then reply = {table.concat(reply)} end -- in miniredis, table.concat cannot join many more strings
end

-- A value keeps the states of these charges. It keeps other states for another second after they
-- have expired, because the clock may be set back.
--
-- The TTL of a value ends at the first whole second after the last state has expired. From the
-- states, direct.lua can therefore tell whether a charge must change the TTL.
for _, value in ipairs(spent > 0 and values or {}) do
  local text, ids, changed, till, written = {}, {}, false, now, ''
  local function keep(id, s, ends)
    if s[1] > now then written = struct.pack('<d', now) end
    text[#text + 1], ids[#ids + 1] = struct.pack('<dddd', s[1], s[2], s[3], s[4]), id
    if s[5] > 0 then text[#text + 1], ids[#ids + 1] = struct.pack('<dddd', s[5], 0, 0, s[4]), id end
    if #text > 100 then text, ids = {table.concat(text)}, {table.concat(ids, ',')} end
    till = math.max(till, ends)
  end
  if value.log then
    value.charges[1].algorithm.spend(value, now, forget)
  else
    for _, c in ipairs(value.charges) do
      changed = changed or c.changed
      value.states[c.id] = nil
      keep(c.id, c.changed and c.state[4] <= now and {0, 0, 0, 0, 0} or c.state, c.state[4])
    end
    local most -- the end of the value's TTL, which a state that is not charged does not extend
    for _, id in ipairs(value.ids) do
      local s = value.states[id]
      if s and s[4] > now - 1000000 then
        if not most then
          local ttl = redis.call('PTTL', value.key)
          -- Round to the nearest second, because Redis counts ttl from an instant later than now.
          -- Otherwise, each long script would shorten the TTL by a second.
          most = ttl < 0 and math.huge or math.floor((now + (ttl - slack_ms) * 1000) / 1000000 + 0.5) * 1000000
        end
        keep(id, s, math.min(s[4], most))
      end
    end
    if changed and till > now then
      local value_text = table.concat(ids, ',') .. ';' .. table.concat(text) .. written
      redis.call('PSETEX', value.key, ms(till + -till % 1000000 - now), value_text)
    elseif changed and value.text then
      redis.call('DEL', value.key)
    end
  end
end
return table.concat(reply)
