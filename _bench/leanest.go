package main

import (
	encoding "encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// leanestScript decides what the contender "weir, three rules with a key each" asks. It reads and
// writes the same values and returns the same reply, but it can do nothing else: each limit is a
// GCRA, each cost is 1, each value has one state, and no debt exceeds 2^50 parts (see meter.lua). It
// shows how fast the script that redisstore generates for this check could be.
var leanestScript = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1e6 + t[2]
local keys, args, call, find, pack, fields = KEYS, ARGV, redis.call, string.find, struct.pack, struct.unpack
local x1, y1, x2, y2, x3, y3 = fields('<dddddd', args[4]) -- quotas and periods
local micros1, micros2, micros3
` + threeTimes(`
local text_i, ids_i = call('GET', keys[i]), args[i]
local new_i = not text_i
if new_i then text_i = ids_i .. string.rep('\0', 32) end
if #text_i ~= #ids_i + 32 or find(text_i, ids_i, 1, true) ~= 1 then return redis.error_reply('ERR other states') end
local at_i, a_i, b_i, till_i = fields('<dddd', text_i, #ids_i + 1)
if at_i > now then return redis.error_reply('ERR the clock was set back') end
`) + "repeat" + threeTimes(`
do
  local back = (now - at_i) * x_i
  if back >= (a_i + 1) * y_i then
    a_i, b_i = 0, 0
  else
    if back >= y_i then
      local gone = back
      back = back % y_i
      a_i = a_i - (gone - back) / y_i
    end
    b_i = b_i - back
    if b_i < 0 then a_i, b_i = a_i - 1, b_i + y_i end
    if a_i < 0 then a_i, b_i = 0, 0 end
  end
  a_i = a_i + 1
  if a_i > x_i or a_i == x_i and b_i >= x_i then break end
  local parts = a_i * y_i + b_i
  if parts > 1125899906842624 then return redis.error_reply('ERR a debt is too large') end
  micros_i = (parts + -parts % x_i) / x_i
end
`) + threeTimes(`
local last_i = now + micros_i
local value_i = pack('<c0dddd', ids_i, now, a_i, b_i, last_i)
last_i = last_i + -last_i % 1000000
if new_i or last_i ~= till_i + -till_i % 1000000 then
  call('PSETEX', keys[i], string.format('%d', (last_i - now + 1999) / 1000), value_i)
else
  call('SETRANGE', keys[i], '0', value_i)
end
`) + `
  return t[1] .. ' ' .. t[2] .. ' 1;' .. text1 .. text2 .. text3
until true
return t[1] .. ' ' .. t[2] .. ' 0;' .. text1 .. text2 .. text3
`)

// threeTimes repeats lines of leanestScript for each key.
func threeTimes(lines string) (text string) {
	for i := 1; i <= 3; i++ {
		text += strings.NewReplacer("_i", fmt.Sprint(i), "[i]", fmt.Sprintf("[%d]", i)).Replace(lines)
	}
	return text
}

// leanest returns checks by leanestScript, with the keys of "weir, three rules with a key each".
func leanest(rdb *redis.Client, units int64) func() check {
	args := []any{"1m/gcra;", "1h/gcra;", "1s/gcra;"}
	var numbers []byte
	for _, period := range []time.Duration{time.Minute, time.Hour, time.Second} {
		for _, n := range []int64{units, period.Microseconds()} {
			numbers = encoding.LittleEndian.AppendUint64(numbers, math.Float64bits(float64(n)))
		}
	}
	args = append(args, numbers)
	return each(func(key string) (bool, error) {
		var keys []string
		for i := range 3 {
			keys = append(keys, fmt.Sprintf("weir:rule%d:{.%srule%[1]d}", i, key))
		}
		reply, err := leanestScript.Run(ctx, rdb, keys, args...).Text()
		return strings.Contains(reply, " 1;"), err
	})
}
