-- This script calls each command that the store and its overrides need. It returns the version of
-- Lua, and each command that failed, with the error. It reports a missing library in the same way
-- as a failed command. The script leaves no key behind.
local reply = {tostring(rawget(_G, '_VERSION'))}
local function try(name, result)
  if type(result) == 'table' and result.err and not string.find(result.err, 'WRONGTYPE', 1, true) then
    reply[#reply + 1] = name
    reply[#reply + 1] = result.err
    return false
  end
  return true
end
if not rawget(_G, 'struct') then try('struct', {err = "variable 'struct'"}) end
local call, key = redis.pcall, KEYS[1]
if calls_time then try('TIME', call('TIME')) end
try('GET', call('GET', key))
local first = try('PSETEX', call('PSETEX', key, '1000', 'x'))
if try('SETRANGE', call('SETRANGE', key, '0', 'x')) or first then
  try('PEXPIRE', call('PEXPIRE', key, '1000'))
  -- The key holds a text, so these commands write nothing. They only test permissions.
  try('HGET', call('HGET', key, 'x'))
  try('HMGET', call('HMGET', key, 'x'))
  try('HSET', call('HSET', key, 'x', 'y'))
  try('HDEL', call('HDEL', key, 'x'))
  try('HGETALL', call('HGETALL', key))
  try('HLEN', call('HLEN', key))
  try('HEXISTS', call('HEXISTS', key, 'x'))
  try('PTTL', call('PTTL', key))
end
try('DEL', call('DEL', key))
return reply
