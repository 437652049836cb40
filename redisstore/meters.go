package redisstore

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/seed83679106/weir"
)

// Metered is an algorithm that is a meter, such as GCRA: each unit of cost adds
// unit ticks to a debt, A of its state, which drains by rate ticks a µs and may
// be full ticks at most. B is unit.
type Metered interface {
	Meter(l *weir.Limit) (unit, rate, full int64)
}

// A meters is the script for the usual transaction: all charges are meters of
// one rule and key, now or never. Its text has the numbers of the limits in it,
// and no loop, no table and no function, which would cost more than the
// arithmetic. It finds its states in a value as it writes them; of any other
// value it says so, and does nothing.
//
// What it writes is "=id:unit,id:unit;" and then, in 16 columns each, the instant
// that all states share and the debts.
type meters struct {
	script
	many         script // takes the charges up to ARGV[1] times
	hits, misses atomic.Int64
}

// mostMeters bounds how many of these scripts a Store has Redis keep. Limits
// beyond that have the general script, which gets their numbers as arguments.
const mostMeters = 256

// metersFor returns the script of t, or nil if it has none.
func (s *Store) metersFor(t *weir.Transaction, within int64) *meters {
	if within != 0 {
		return nil
	}
	var here [128]byte
	name := here[:0]
	for i := range t.Charges {
		c := &t.Charges[i]
		if _, ok := c.Limit.Algorithm.(Metered); !ok || c.Cost != 1 || c.Key != t.Charges[0].Key || c.Rule != t.Charges[0].Rule {
			return nil
		}
		name = append(append(append(name, c.Limit.Algorithm.Name()...), ' '), c.Limit.Name...)
		for _, n := range [...]int64{c.Limit.Quota, int64(c.Limit.Period), c.Limit.Burst} {
			name = strconv.AppendInt(append(name, ' '), n, 36)
		}
		name = append(name, '\n')
	}
	if m, ok := s.meters.Load(string(name)); ok {
		if m := m.(*meters); m.misses.Load() <= 100+m.hits.Load() {
			return m
		}
		return nil // others write these values in another way
	}
	if s.metered.Add(1) > mostMeters {
		s.metered.Add(-1)
		return nil
	}
	m, _ := s.meters.LoadOrStore(string(name), newMeters(t.Charges))
	return m.(*meters)
}

func newMeters(charges []weir.Charge) *meters {
	header := "="
	for i := range charges {
		l := &charges[i].Limit
		unit, _, _ := l.Algorithm.(Metered).Meter(l)
		if i > 0 {
			header += ","
		}
		header += fmt.Sprintf("%s:%d", id(l), unit)
	}
	header += ";"
	return &meters{script: meterScript(charges, header, false), many: meterScript(charges, header, true)}
}

func meterScript(charges []weir.Charge, header string, many bool) script {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	each := func(sep, format string, number func(i int) []any) string {
		var parts []string
		for i := range charges {
			parts = append(parts, fmt.Sprintf(format, number(i)...))
		}
		return strings.Join(parts, sep)
	}
	debt := func(i int) []any { return []any{i} }

	line("local t = redis.call('TIME')")
	line("local now = t[1] * 1000000 + t[2]")
	line("local text = redis.call('GET', KEYS[1])")
	line("local %s = %s", each(", ", "d%d", debt), each(", ", "0", func(int) []any { return nil }))
	line("if text then")
	line("if string.sub(text, 1, %d) ~= %q then return 0 end", len(header), header)
	line("local gone = now - string.sub(text, %d, %d)", len(header)+1, len(header)+16)
	line("if gone < 0 then return {t[1], t[2], 0, text} end")
	for i := range charges {
		l := &charges[i].Limit
		_, rate, full := l.Algorithm.(Metered).Meter(l)
		line("d%d = string.sub(text, %d, %d) + 0", i, len(header)+17+16*i, len(header)+32+16*i)
		line("if d%d > %d then d%[1]d = %[2]d end", i, full)
		line("d%d = d%[1]d - gone * %d", i, rate)
		line("if d%d < 0 then d%[1]d = 0 end", i)
	}
	line("end")
	times := ""
	if many {
		times = " * n"
		line("local n, fit = ARGV[1] + 0")
		for i := range charges {
			l := &charges[i].Limit
			unit, _, full := l.Algorithm.(Metered).Meter(l)
			line("fit = math.floor((%d - d%d) / %d)", full, i, unit)
			line("if fit < n then n = fit end")
		}
		line("if n < 1 then return {t[1], t[2], 0, text} end")
	}
	line("local reset, r = 0, 0")
	for i := range charges {
		l := &charges[i].Limit
		unit, rate, full := l.Algorithm.(Metered).Meter(l)
		line("d%d = d%[1]d + %d%s", i, unit, times)
		if !many {
			line("if d%d > %d then return {t[1], t[2], 0, text} end", i, full)
		}
		line("r = d%d / %d", i, rate)
		line("if r > reset then reset = r end")
	}
	line("redis.call('SET', KEYS[1], string.format(%q, now, %s), 'PX', math.ceil(reset / 1000) + 1)",
		strings.ReplaceAll(header, "%", "%%")+"%16.0f"+strings.Repeat("%16.0f", len(charges)), each(", ", "d%d", debt))
	if many {
		line("return {t[1], t[2], n, text}")
	} else {
		line("return {t[1], t[2], 1, text}")
	}
	return named(b.String())
}

func named(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}
