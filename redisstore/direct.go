package redisstore

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/period"
)

// Metered is an algorithm that is a meter, such as GCRA: each unit of cost adds
// unit ticks to a debt, A of its state, which drains by rate ticks a µs and may
// be full ticks at most. B is unit.
type Metered interface {
	Meter(l *weir.Limit) (unit, rate, full int64)
}

// A direct is the script for the usual transaction: a unit of each limit of one
// rule and key, now or never, where all are meters or all are logs. Its text has
// the numbers of the limits in it, and no loop, table or function that would cost
// more than the arithmetic. It finds its states in a value as it writes them; of
// any other value it says so, with a 0, and does nothing. With a 1 it leaves a debt
// to the general script that a larger limit of the same name has left.
type direct struct {
	script
	many         script // takes the charges up to ARGV[1] times; of logs there is none
	logs         bool
	hits, misses atomic.Int64
}

// mostDirect bounds how many of these scripts a Store has Redis keep. Limits
// beyond that have the general script, which gets their numbers as arguments.
const mostDirect = 256

// A script has some registers for each limit, and Lua has 200 for a function,
// and 32 captures for a pattern. What has more limits has the general script, which
// loops.
const (
	mostMeters = 32
	mostLogs   = 30
)

// directFor returns the script of t, or nil if it has none.
func (s *Store) directFor(t *weir.Transaction, within int64) *direct {
	if within != 0 {
		return nil
	}
	var here [128]byte
	name := here[:0]
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Cost != 1 || c.Key != t.Charges[0].Key || c.Rule != t.Charges[0].Rule {
			return nil
		}
		// Each is separated from the next, whatever is in its names: no name has
		// a line break.
		name = append(append(name, c.Limit.Algorithm.Name()...), '\n')
		if c.Limit.Name != "" {
			name = append(name, c.Limit.Name...)
		} else {
			name = period.Append(name, c.Limit.Period)
		}
		for _, n := range [...]int64{c.Limit.Quota, int64(c.Limit.Period), c.Limit.Burst} {
			name = strconv.AppendInt(append(name, ' '), n, 36)
		}
		name = append(name, '\n')
	}
	if d, ok := s.direct.Load(string(name)); ok {
		if d := d.(*direct); d != nil && d.misses.Load() <= 100+d.hits.Load() {
			return d
		}
		return nil // there is none, or others write these values in another way
	}
	if s.directs.Add(1) > mostDirect {
		s.directs.Add(-1)
		return nil
	}
	d, _ := s.direct.LoadOrStore(string(name), newDirect(t.Charges))
	return d.(*direct)
}

func newDirect(charges []weir.Charge) *direct {
	meters, logs := true, true
	var ids, units []string
	for i := range charges {
		l := &charges[i].Limit
		ids = append(ids, id(l))
		if m, ok := l.Algorithm.(Metered); ok {
			unit, _, _ := m.Meter(l)
			units = append(units, fmt.Sprintf("%s:%d", id(l), unit))
		} else {
			meters = false
		}
		logs = logs && isLog(l.Algorithm)
	}
	switch {
	case meters && len(charges) <= mostMeters:
		header := "=" + strings.Join(units, ",") + ";"
		return &direct{script: meterScript(charges, header, false), many: meterScript(charges, header, true)}
	case logs && len(charges) <= mostLogs:
		return &direct{script: logScript(charges, "="+strings.Join(ids, ",")), logs: true}
	}
	return nil
}

// A lua is the text of a script as it is written.
type lua struct {
	strings.Builder
	charges []weir.Charge
}

func (b *lua) line(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// each joins something of each charge; %d is its index.
func (b *lua) each(format, sep string) string {
	var parts []string
	for i := range b.charges {
		parts = append(parts, strings.ReplaceAll(format, "%d", strconv.Itoa(i)))
	}
	return strings.Join(parts, sep)
}

func meterScript(charges []weir.Charge, header string, many bool) script {
	b := lua{charges: charges}
	line, each := b.line, b.each
	line("local t = redis.call('TIME')")
	line("local now = t[1] * 1000000 + t[2]")
	line("local text = redis.call('GET', KEYS[1])")
	line("local %s = %s", each("d%d", ", "), each("0", ", "))
	line("if text then")
	line("if string.sub(text, 1, %d) ~= %q then return 0 end", len(header), header)
	line("local gone = now - string.sub(text, %d, %d)", len(header)+1, len(header)+16)
	line("if gone < 0 then return {t[1], t[2], 0, text} end")
	for i := range charges {
		l := &charges[i].Limit
		_, rate, full := l.Algorithm.(Metered).Meter(l)
		line("d%d = string.sub(text, %d, %d) + 0", i, len(header)+17+16*i, len(header)+32+16*i)
		line("if d%d > %d then return 1 end", i, full)
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
	line("local reset = 0")
	for i := range charges {
		l := &charges[i].Limit
		unit, rate, full := l.Algorithm.(Metered).Meter(l)
		line("d%d = d%[1]d + %d%s", i, unit, times)
		if !many {
			line("if d%d > %d then return {t[1], t[2], 0, text} end", i, full)
		}
		if i == 0 {
			line("reset = d0 / %d", rate)
			continue
		}
		line("local r = d%d / %d", i, rate)
		line("if r > reset then reset = r end")
	}
	line("redis.call('SET', KEYS[1], string.format(%q, now, %s), 'PX', math.ceil(reset / 1000) + 1)",
		strings.ReplaceAll(header, "%", "%%")+"%16.0f"+strings.Repeat("%16.0f", len(charges)), each("d%d", ", "))
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
