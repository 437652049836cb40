package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// Processes that share a prefix use two Redis hashes, both of which have a TTL. In weir:processes,
// each process has a field with the time until which the process counts. In weir:limits, processes
// report the limits of their rules. All times are by the server's clock, so the clocks of processes
// need not be correct.
const (
	processLife = 20 * time.Second // how long a process counts after a report
	hashLife    = time.Hour        // how long the hash is kept after the last report
	limitsLife  = 30 * time.Second // how long a text is kept after the last report
)

// heartbeatLua gets the id of a process, the time in µs for which the process counts, the process's
// group, and hashLife in ms. It returns how many processes count, until when this process counted
// before the call, until when it counts now, and the field with the empty name. This field contains
// the time of the next sweep, the time at which the hash was created, and three results of the last
// sweep: the id of the server, the number of keys that the server has evicted, and the number of
// processes in each group. The first two of these results are "-" if the user lacks the permission
// for INFO, or Redis is older than 7. A sweep removes the processes that no longer count. The hash
// is kept for longer, so that a restart with all data does not look like a loss.
const heartbeatLua = `
local h, id, group, ends = KEYS[1], ARGV[1], ARGV[3], string.format('%.0f', now + ARGV[2])
local known, of = string.match(redis.call('HGET', h, id) or '', '^(%d+) ?(.*)')
redis.call('HSET', h, id, ends .. ' ' .. group)
redis.call('PEXPIRE', h, ARGV[4])
local data = redis.call('HGET', h, '') or ''
local due, made = string.match(data, '^(%d+) (%d+)')
if not due or of ~= group or now >= due + 0 or due - now > 5e6 then -- more: the clock was set back
	local all, groups, server, evicted = redis.call('HGETALL', h), {}, '-', '-'
	for i = 1, #all, 2 do
		local till, of = string.match(all[i + 1], '^(%d+) ?(.*)')
		if all[i] == '' then
		elseif not till or now >= till + 0 or till - now > ARGV[2] + 5e6 then redis.call('HDEL', h, all[i])
		else groups[of] = (groups[of] or 0) + 1 end
	end
	local known, may = pcall(redis.acl_check_cmd, 'INFO', 'server', 'stats') -- not known: Redis 6, or a renamed INFO
	if known and may then
		local info = redis.call('INFO', 'server', 'stats')
		server, evicted = string.match(info, '\nrun_id:(%w+)') or '-', string.match(info, '\nevicted_keys:(%d+)') or '-'
	end
	data = string.format('%.0f %s %s %s', now + 5e6, made or string.format('%.0f', now), server, evicted)
	for of, n in pairs(groups) do data = data .. ' ' .. of .. '=' .. n end
	redis.call('HSET', h, '', data)
end
return string.format('%.0f %s %s %s', redis.call('HLEN', h) - 1, known or '0', ends, data)`

// compareLua gets the id of a process, the time in µs for which the report is kept, and alternately
// names and quoted texts. A field has up to eight different texts, each with an expiry time and the
// last process that reported the text. The script returns, again alternately, names and the
// different texts that other processes have reported under these names.
const compareLua = `
local h, process, life, other = KEYS[1], ARGV[1], ARGV[2] + 0, {}
for i = 3, #ARGV - 1, 2 do
	local name, text = ARGV[i], ARGV[i + 1]
	local all = {string.format('%.0f', now + life) .. ' ' .. process .. ' ' .. text .. '\n'}
	for ends, of, known in string.gmatch(redis.call('HGET', h, name) or '', '(%d+) (%S+) ([^\n]*)\n') do
		if of ~= process and known ~= text and now < ends + 0 and ends - now <= life + 5e6 and #all < 8 then
			other[#other + 1] = name
			other[#other + 1] = known
			all[#all + 1] = ends .. ' ' .. of .. ' ' .. known .. '\n'
		end
	end
	redis.call('HSET', h, name, table.concat(all))
end
redis.call('PEXPIRE', h, string.format('%.0f', life / 1000 + slack_ms))
return other`

// A Heartbeat is the response of Redis to a process that reports that it is running.
type Heartbeat struct {
	// Processes is the number of processes with the store's Prefix that have reported within about
	// the last 20 s. Groups contains the number of these processes in each group.
	Processes int
	Groups    map[string]int

	// Server is the id of the server, which changes at each start. Evicted is the number of keys
	// that the server has evicted since the start. Both are at most 5 s old. Server is "" if Redis
	// is older than 7, or if the Redis user lacks the permission for INFO. In a cluster or a Ring,
	// both describe the node that keeps the processes.
	Server  string
	Evicted int64

	made       string // when the hash of the processes was created
	known, end int64  // the times until which the process counted before the report (0 if it did not) and counts now
}

// Lost reports whether Redis has lost data since an earlier Heartbeat of the same process, either
// all data or, if an older copy was restored, the newest data. If the process had not reported for
// 20 s, as in a frozen container, or the clock was set back, Lost cannot detect an older copy. If
// it had not reported for an hour, Lost detects no loss at all, because the hash of the processes
// may have expired.
func (h *Heartbeat) Lost(before *Heartbeat) bool {
	expired := h.known == 0 && (h.end-processLife.Microseconds() >= before.end || h.end < before.end) // or the clock was set back
	if h.end-before.end >= hashLife.Microseconds() {
		return false
	}
	return h.made != before.made || h.known < before.end && !expired
}

// Heartbeat reports to Redis that a process, which belongs to a group, uses the store. The id
// identifies the process; neither id nor group may contain spaces. Package stack calls Heartbeat
// every 2 s.
func (s *Store) Heartbeat(ctx context.Context, id, group string) (h *Heartbeat, err error) {
	err = s.run(ctx, "processes", heartbeatLua, func(cmd queue.Cmd) error {
		text, err := cmd.Text()
		if h = readHeartbeat(text); err == nil && h == nil {
			return errUnreadable
		}
		return err
	}, id, processLife.Microseconds(), group, hashLife.Milliseconds())
	return h, err
}

// readHeartbeat parses the reply of heartbeatLua. If the reply is malformed, it returns nil.
func readHeartbeat(text string) *Heartbeat {
	h := &Heartbeat{Groups: map[string]int{}}
	var due, server, evicted string // due, the time of the next sweep, is not used
	if _, err := fmt.Sscan(text, &h.Processes, &h.known, &h.end, &due, &h.made, &server, &evicted); err != nil || h.Processes < 1 {
		return nil
	}
	if n, err := strconv.ParseInt(evicted, 10, 64); err == nil && server != "-" {
		h.Server, h.Evicted = server, n
	}
	for _, field := range strings.Fields(text)[7:] {
		group, n, _ := strings.Cut(field, "=")
		h.Groups[group], _ = strconv.Atoi(n)
	}
	return h
}

// CompareLimits reports texts under names, such as a process's limits under the names of the rules.
// It returns the names under which other processes have reported different texts within the last 30
// s, each with up to seven of these texts. Package stack calls CompareLimits every 10 s.
func (s *Store) CompareLimits(ctx context.Context, id string, limits map[string]string) (map[string][]string, error) {
	args := []any{id, limitsLife.Microseconds()}
	for name, text := range limits {
		args = append(args, name, strconv.Quote(text))
	}
	other := map[string][]string{}
	err := s.run(ctx, "limits", compareLua, func(cmd queue.Cmd) error {
		fields, err := cmd.StringSlice()
		if len(fields)%2 != 0 {
			return errUnreadable
		}
		for i := 0; i < len(fields); i += 2 {
			if text, err := strconv.Unquote(fields[i+1]); err == nil {
				other[fields[i]] = append(other[fields[i]], text)
			}
		}
		return err
	}, args...)
	return other, err
}
