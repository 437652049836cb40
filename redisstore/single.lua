-- The usual transaction, without the tables of the others: one charge of a
-- fixed-size state that has its value to itself, now or never.
if #ARGV == 12 and ARGV[1] == '0' and ARGV[2] == '0' and not algorithms[1].log then
  local id, cost = ARGV[5], tonumber(ARGV[6])
  local text = redis.call('GET', KEYS[1])
  local state
  if not text then
    state = {at = 0, a = 0, b = 0, till = 0}
  elseif string.sub(text, 2, #id + 2) == id .. ':' then
    local b, till, from = string.match(text, '^(%-?%d+)~?(%d*);()', #id + 3)
    if b then
      state = {at = tonumber(string.sub(text, from, from + 15)), a = tonumber(string.sub(text, from + 16)), b = tonumber(b), till = tonumber(till) or 0}
    end
  end
  if state and cost > 0 then
    local t = redis.call('TIME')
    local now = t[1] * 1000000 + t[2]
    local at = math.max(now, state.at)
    local retry, a, b, reset = algorithms[1].take(state, at, cost,
      tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10])
    if retry ~= 0 or at > now then return {t[1], t[2], 0, text} end
    local till = algorithms[1].till and string.format('~%.0f', at + reset) or ''
    redis.call('SET', KEYS[1], string.format('=%s:%.0f%s;%16.0f%16.0f', id, b, till, at, a), 'PX', ms(reset))
    return {t[1], t[2], 1, text}
  end
end
