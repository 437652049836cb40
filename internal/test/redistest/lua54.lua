-- A server with the commands and libraries that the scripts of Weir use, and with Lua 5.4. It
-- is stricter than the servers that it stands for: a script may use only keys that it declares,
-- and no global that Redis lacks, and no argument of redis.call may be a float, which Lua 5.4
-- writes as 1.0.
--
-- lua54.go writes a command as a line and the arguments. The line has the time in µs, whether
-- values expire, the SHA-1 of the text of a script, and the length of each argument. The answer is a
-- line with a length, and a reply in RESP.
local db, ends, scripts, now, expire, sha, declared, refuse_time = {}, {}, {}, 0, false, '', nil, false

local wrong_type = {err = 'WRONGTYPE Operation against a key holding the wrong kind of value'}

local function value(key, kind)
  if expire and ends[key] and ends[key] <= now then db[key], ends[key] = nil, nil end
  local v = db[key]
  if v and kind and type(v) ~= kind then error(wrong_type) end
  return v
end

local function whole(text)
  return string.find(text, '^-?%d+$') and math.tointeger(tonumber(text)) or error({err = 'ERR value is not an integer or out of range'})
end

local function until_ms(ms)
  return whole(ms) > 0 and now + whole(ms) * 1000 or error({err = 'ERR invalid expire time'})
end

local function live()
  local keys = {}
  for key in pairs(db) do
    if value(key) then keys[#keys + 1] = key end
  end
  table.sort(keys)
  return keys
end

local function fields_of(h)
  local names = {}
  for name in pairs(h) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function flush()
  db, ends = {}, {}
  return {ok = 'OK'}
end

-- These commands have one key, their first argument.
local of_key = {
  GET = function(key) return value(key, 'string') or false end,
  SET = function(key, text, how, ms)
    value(key)
    db[key] = text
    if how == 'PX' then ends[key] = until_ms(ms) elseif how ~= 'KEEPTTL' then ends[key] = nil end
    return {ok = 'OK'}
  end,
  PSETEX = function(key, ms, text)
    db[key], ends[key] = text, until_ms(ms)
    return {ok = 'OK'}
  end,
  SETRANGE = function(key, from, text)
    local old = value(key, 'string') or ''
    db[key] = string.sub(old, 1, whole(from)) .. text .. string.sub(old, whole(from) + #text + 1)
    return #db[key]
  end,
  EXISTS = function(key) return value(key) and 1 or 0 end,
  PTTL = function(key)
    if not value(key) then return -2 end
    return ends[key] and math.max(1, (ends[key] - now + 500) // 1000) or -1 -- see SetTime
  end,
  PEXPIRE = function(key, ms)
    if not value(key) then return 0 end
    ends[key] = until_ms(ms)
    return 1
  end,
  HGET = function(key, name) return (value(key, 'table') or {})[name] or false end,
  HMGET = function(key, ...)
    local h, texts = value(key, 'table') or {}, {}
    for i, name in ipairs({...}) do texts[i] = h[name] or false end
    return texts
  end,
  HSET = function(key, ...)
    local h, list, added = value(key, 'table') or {}, {...}, 0
    for i = 1, #list, 2 do
      if not h[list[i]] then added = added + 1 end
      h[list[i]] = list[i + 1] or error({err = "ERR wrong number of arguments for 'hset' command"})
    end
    db[key] = h
    return added
  end,
  HDEL = function(key, ...)
    local h, gone = value(key, 'table') or {}, 0
    for _, name in ipairs({...}) do
      if h[name] then h[name], gone = nil, gone + 1 end
    end
    if not next(h) then db[key], ends[key] = nil, nil end
    return gone
  end,
  HGETALL = function(key)
    local h, list = value(key, 'table') or {}, {}
    for _, name in ipairs(fields_of(h)) do list[#list + 1], list[#list + 2] = name, h[name] end
    return list
  end,
  HLEN = function(key) return #fields_of(value(key, 'table') or {}) end,
  HEXISTS = function(key, name) return (value(key, 'table') or {})[name] and 1 or 0 end,
  DEL = function(key)
    local had = value(key) and 1 or 0
    db[key], ends[key] = nil, nil
    return had
  end,
}

local commands = {
  PING = function() return {ok = 'PONG'} end,
  SELECT = function() return {ok = 'OK'} end,
  TIME = function() return {string.format('%d', now // 1000000), string.format('%d', now % 1000000)} end,
  REFUSETIME = function()
    refuse_time = true
    return {ok = 'OK'}
  end,
  DBSIZE = function() return #live() end,
  KEYS = live,
  SCAN = function() return {'0', live()} end,
  FLUSHDB = flush,
  FLUSHALL = flush,
  -- DUMP returns a text that is the same if, and only if, nothing has changed.
  DUMP = function()
    local list = {}
    for _, key in ipairs(live()) do
      local v = db[key]
      list[#list + 1] = key .. ' ' .. tostring(ends[key])
      if type(v) == 'table' then
        for _, name in ipairs(fields_of(v)) do list[#list + 1] = name .. ' = ' .. v[name] end
      else
        list[#list + 1] = v
      end
    end
    return table.concat(list, '\n')
  end,
}

local function answer(name, ...)
  name = string.upper(name)
  local f = commands[name]
  if of_key[name] then
    f = of_key[name]
    if declared and not declared[...] then return {err = 'ERR the script has not declared a key of ' .. name} end
  end
  if declared and name == 'TIME' and refuse_time then
    local level = 2
    while debug.getinfo(level, 'S').source ~= '@user_script' do level = level + 1 end
    local line = debug.getinfo(level, 'l').currentline
    return {err = 'ERR This Redis command is not allowed from script script: ' .. sha .. ', on @user_script:' .. line .. '.'}
  end
  if not f then return {err = "ERR unknown command '" .. name .. "'"} end
  local ok, reply = pcall(f, ...)
  if ok then return reply end
  return type(reply) == 'table' and reply or {err = 'ERR ' .. reply}
end

local redis = {}
function redis.pcall(...)
  local args = {...}
  for i, arg in ipairs(args) do
    if math.type(arg) == 'integer' then args[i] = tostring(arg) end
    if type(args[i]) ~= 'string' then error('argument ' .. i .. ' of redis.call is no text or integer', 3) end
  end
  return answer(table.unpack(args))
end
function redis.call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end
function redis.error_reply(text) return {err = text} end

-- struct is the part of lua_struct that the scripts use. As there, each number is a float.
local struct = {}
function struct.pack(format, ...)
  if not string.find(format, '[cI]') then return string.pack(format, ...) end
  local parts = {}
  for kind, size in string.gmatch(format, '([dcI])(%d*)') do
    local v = select(#parts + 1, ...)
    if kind == 'd' then v = string.pack('<d', v) elseif kind == 'I' then v = string.pack('<I' .. size, v) end
    parts[#parts + 1] = v
  end
  return table.concat(parts)
end
function struct.unpack(format, text, from)
  local list = table.pack(string.unpack(format, text, from or 1))
  for i = 1, list.n - 1 do list[i] = list[i] + 0.0 end
  return table.unpack(list, 1, list.n)
end

local globals = {
  string = string, table = table, math = math, redis = redis, struct = struct, _VERSION = _VERSION,
  tonumber = tonumber, tostring = tostring, type = type, pairs = pairs, ipairs = ipairs, next = next, select = select,
  error = error, pcall = pcall, rawget = rawget,
}
globals._G = globals
setmetatable(globals, {
  __index = function(_, name) error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2) end,
  __newindex = function(_, name) error("Attempt to modify a readonly table: " .. tostring(name), 2) end,
})

local function compile(text)
  local shebang = string.match(text, '^#![^\n]*')
  if shebang then
    if shebang ~= '#!lua flags=allow-key-locking' then return {err = 'ERR Unexpected flag in script shebang'} end
    text = string.sub(text, #shebang + 1)
  end
  local f, err = load(text, '@user_script', 't', globals)
  if not f then return {err = 'ERR Error compiling script (new function): ' .. err} end
  scripts[sha] = f
  return sha
end

local function run(count, ...)
  local args, keys = {...}, {}
  count = whole(count)
  declared = {}
  for i = 1, count do keys[i], declared[args[i]] = args[i], true end
  rawset(globals, 'KEYS', keys)
  rawset(globals, 'ARGV', table.move(args, count + 1, #args, 1, {}))
  local ok, reply = pcall(scripts[sha])
  declared = nil
  if ok then return reply end
  if type(reply) == 'table' and reply.err then return reply end
  return {err = 'ERR Error running script (call to f_' .. sha .. '): @user_script: ' .. tostring(reply)}
end

function commands.EVAL(text, ...)
  local compiled = scripts[sha] or compile(text)
  if type(compiled) == 'table' then return compiled end
  return run(...)
end
function commands.EVALSHA(hash, ...)
  sha = hash
  if not scripts[sha] then return {err = 'NOSCRIPT No matching script. Please use EVAL.'} end
  return run(...)
end
function commands.SCRIPT(what, text)
  what = string.upper(what)
  if what == 'LOAD' then return compile(text) end
  if what == 'FLUSH' then scripts = {} end
  return {ok = 'OK'}
end

local function resp(v)
  if type(v) == 'number' then return string.format(':%d\r\n', v < 0 and math.ceil(v) or math.floor(v)) end
  if type(v) == 'string' then return '$' .. #v .. '\r\n' .. v .. '\r\n' end
  if v == true then return ':1\r\n' end
  if not v then return '$-1\r\n' end
  if v.err then return '-' .. string.gsub(v.err, '[\r\n]', ' ') .. '\r\n' end
  if v.ok then return '+' .. v.ok .. '\r\n' end
  local parts = {}
  for i = 1, #v do parts[i] = resp(v[i]) end
  return '*' .. #v .. '\r\n' .. table.concat(parts)
end

for line in io.lines() do
  local numbers, args = {}, {}
  for word in string.gmatch(line, '%S+') do numbers[#numbers + 1] = word end
  now, expire, sha = math.tointeger(numbers[1]), numbers[2] == '1', numbers[3]
  for i = 4, #numbers do args[i - 3] = numbers[i] == '0' and '' or io.read(math.tointeger(numbers[i])) end
  local reply = resp(answer(table.unpack(args)))
  io.write(#reply, '\n', reply)
  io.flush()
end
