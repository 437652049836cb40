package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Processes that share a prefix have two Redis hashes in common: weir:processes, in which each
// process has a field with the time at which it no longer counts, and weir:limits, with the limits
// of their rules. Both have a TTL. All times are those of the server, so the clock of a process
// need not be right.
const (
	processLife = 20 * time.Second // how long a process counts after it has reported
	limitsLife  = 30 * time.Second // how long a text is known after a process has reported it
)

// countLua gets a process, and the time in µs for which it counts. It returns how many processes
// count. At most every 5 s it removes those that no longer count; the field with the empty name has
// the time of the next such removal.
const countLua = `
local h, life = KEYS[1], ARGV[2] + 0
redis.call('HSET', h, ARGV[1], string.format('%.0f', now + life))
redis.call('PEXPIRE', h, string.format('%.0f', life / 1000 + slack_ms))
local at = redis.call('HGET', h, '')
if not at or now >= at + 0 then
	local all = redis.call('HGETALL', h)
	for i = 1, #all, 2 do
		if all[i] ~= '' and now >= all[i + 1] + 0 then redis.call('HDEL', h, all[i]) end
	end
	redis.call('HSET', h, '', string.format('%.0f', now + 5e6))
end
return redis.call('HLEN', h) - 1`

// compareLua gets a process, the time in µs for which its report is kept, and names and quoted
// texts alternately. A field has up to eight different texts, each with its expiry time and the
// last process that reported it. The script returns names and texts alternately: the texts that
// other processes have reported under the same names, if they are different.
const compareLua = `
local h, process, life, other = KEYS[1], ARGV[1], ARGV[2] + 0, {}
for i = 3, #ARGV - 1, 2 do
	local name, text = ARGV[i], ARGV[i + 1]
	local all = {string.format('%.0f', now + life) .. ' ' .. process .. ' ' .. text .. '\n'}
	for ends, of, known in string.gmatch(redis.call('HGET', h, name) or '', '(%d+) (%S+) ([^\n]*)\n') do
		if of ~= process and known ~= text and now < ends + 0 and #all < 8 then
			other[#other + 1] = name
			other[#other + 1] = known
			all[#all + 1] = ends .. ' ' .. of .. ' ' .. known .. '\n'
		end
	end
	redis.call('HSET', h, name, table.concat(all))
end
redis.call('PEXPIRE', h, string.format('%.0f', life / 1000 + slack_ms))
return other`

// CountProcesses reports that a process uses the store, and returns how many processes with the
// store's Prefix have done so within the last 20 s, or a little longer. The id identifies the
// process; it must not contain spaces. Package stack calls CountProcesses every 2 s.
func (s *Store) CountProcesses(ctx context.Context, id string) (n int, err error) {
	cmd, err := s.run(ctx, s.prefix+"processes", countLua, id, processLife.Microseconds())
	if err == nil {
		n, err = cmd.Int()
	}
	if err == nil && n < 1 {
		err = errors.New("the reply can't be read")
	}
	if err != nil {
		return 0, s.scriptError(ctx, countLua, "processes", err)
	}
	return n, nil
}

// CompareLimits reports texts under names for a process, such as the limits under the names of its
// rules. It returns the names under which other processes have reported different texts within the
// last 30 s, each with up to seven of these texts. Package stack calls CompareLimits every 10 s.
func (s *Store) CompareLimits(ctx context.Context, id string, limits map[string]string) (map[string][]string, error) {
	args := []any{id, limitsLife.Microseconds()}
	for name, text := range limits {
		args = append(args, name, strconv.Quote(text))
	}
	cmd, err := s.run(ctx, s.prefix+"limits", compareLua, args...)
	var fields []string
	if err == nil {
		fields, err = cmd.StringSlice()
	}
	if err == nil && len(fields)%2 != 0 {
		err = errors.New("the reply can't be read")
	}
	if err != nil {
		return nil, s.scriptError(ctx, compareLua, "limits", err)
	}
	other := make(map[string][]string, len(fields)/2)
	for i := 0; i < len(fields); i += 2 {
		if text, err := strconv.Unquote(fields[i+1]); err == nil {
			other[fields[i]] = append(other[fields[i]], text)
		}
	}
	return other, nil
}

// scriptError explains an error of a script that evaluates no charges. If waiting does not help, it
// wraps quota.ErrUnusable.
func (s *Store) scriptError(ctx context.Context, lua, of string, err error) error {
	err = quoteLine(s.scripts.prologue()+lua, of, err)
	return fmt.Errorf("redisstore: %s: %w", of, s.timeoutCause(ctx, err))
}
