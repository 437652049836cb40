package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// The overrides are the fields of one Redis hash: weir:overrides, with the default Prefix. The
// field with the empty name is the version: the time of the newest change. The hash has no TTL, so
// Redis evicts the hash only if the name of the maxmemory-policy begins with allkeys.
//
// loadOverridesLua returns names and texts alternately, followed by the time in µs. If the version
// is still ARGV[1], it returns only the version and the time.
const loadOverridesLua = `
local fields = {'', redis.call('HGET', KEYS[1], '') or ''}
if fields[2] ~= ARGV[1] then fields = redis.call('HGETALL', KEYS[1]) end
fields[#fields + 1] = string.format('%.0f', now)
return fields`

// saveOverrideLua gets a name, a text, a duration in µs (0 means permanently), and the maximum
// number of overrides. If there are already that many other overrides, the script first removes
// those that have expired. If too many are left, it returns 1. An empty text removes the override.
const saveOverrideLua = `
local h, name, text = KEYS[1], ARGV[1], ARGV[2]
if text == '' then
	if redis.call('HDEL', h, name) == 0 then return 0 end
else
	local most = ARGV[4] + 0
	local function full()
		return redis.call('HLEN', h) - redis.call('HEXISTS', h, '') - redis.call('HEXISTS', h, name) >= most
	end
	if full() then
		local all = redis.call('HGETALL', h)
		for i = 1, #all, 2 do
			local ends = string.match(all[i + 1], '^(%d+) ')
			if all[i] ~= '' and ends and ends + 0 > 0 and ends + 0 <= now then redis.call('HDEL', h, all[i]) end
		end
		if full() then return 1 end
	end
	local ends = 0
	if ARGV[3] ~= '0' then ends = now + ARGV[3] end
	redis.call('HSET', h, name, string.format('%.0f', ends) .. ' ' .. text)
end
local newest = redis.call('HGET', h, '')
redis.call('HSET', h, '', string.format('%.0f', math.max(now, (newest or 0) + 1)))
return 0`

// LoadOverrides implements overrides.Keeper.
func (s *Store) LoadOverrides(ctx context.Context, version string) (
	kept map[string]string, newest string, now time.Time, err error,
) {
	err = s.run(ctx, "overrides", loadOverridesLua, func(cmd queue.Cmd) (err error) {
		kept, newest, now, err = readOverrides(cmd.StringSlice())
		return err
	}, version)
	return kept, newest, now, err
}

// readOverrides reads the reply of loadOverridesLua.
func readOverrides(fields []string, err error) (kept map[string]string, newest string, now time.Time, _ error) {
	if err != nil {
		return nil, "", now, err
	}
	if len(fields)%2 == 0 {
		return nil, "", now, errUnreadable
	}
	micros, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	if err != nil {
		return nil, "", now, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	kept = make(map[string]string, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		kept[fields[i]] = fields[i+1]
	}
	newest = kept[""]
	delete(kept, "")
	return kept, newest, time.UnixMicro(micros), nil
}

// SaveOverride implements overrides.Keeper.
func (s *Store) SaveOverride(ctx context.Context, name, text string, d time.Duration, most int) (full bool, err error) {
	µs := d.Microseconds()
	if d%time.Microsecond > 0 { // otherwise a nanosecond would last forever
		µs++
	}
	err = s.run(ctx, "overrides", saveOverrideLua, func(cmd queue.Cmd) error {
		n, err := cmd.Int()
		if full = n == 1; err == nil && n != 0 && n != 1 {
			return errUnreadable
		}
		return err
	}, name, text, strconv.FormatInt(µs, 10), strconv.Itoa(most))
	return full, err
}
