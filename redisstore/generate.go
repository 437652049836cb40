package redisstore

import (
	"cmp"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seed83679106/weir"
)

// Scripted is what an algorithm needs besides weir.Algorithm to be decided in Redis. Its Lua
// must be the same function as its Take, bit for bit: storetest.Limits compares them. It
// defines
//
//	local function take(at, a, b, till, now, cost, quota, period, burst)
//
// The state is the numbers at, a, b and till, its Until; of a Log, see Logged. All are 0 for a
// key never seen. now and period are in µs, and cost is not 0. now is never before at: if at is
// yet to come, the script asks for the instant at, and adds the wait until then.
//
// If the cost fits, take returns 0 and the four numbers of the next state. Otherwise it returns
// how many µs after now the cost fits, or −1 for never. A negative cost gives back and always
// fits. till of the next state is the instant from which it decides as a key never seen: Redis
// forgets it then. Numbers are float64: return integers below 2^53, which are exact.
//
// All that the Lua defines is local. It depends on nothing but the Name of the algorithm: a
// Store asks once, and puts it into scripts with the Lua of other algorithms.
//
// The Lua of a weir.Queuer and of a weir.Canceler also defines, below take and what take calls,
//
//	local function queue(at, a, b, till, now, turn, cost, quota, period, burst)
//	local function cancel(at, a, b, till, now, of, n, quota, period, burst)
//
// In both, now is the clock and may lie before at. queue returns the wait in µs, whether there
// is room, and the four numbers of the next state, for a turn at the instant turn or later.
// cancel returns the four numbers of the state without n units that were spent at the instant
// of, or nothing if it finds none.
type Scripted interface {
	Lua() string
}

// Metered is a Scripted algorithm that is a meter, such as GCRA: each unit of cost adds
// unit ticks to a debt, which drains by rate ticks a µs and may be full ticks at most. Its
// Lua takes unit, rate and full in place of quota, period and burst.
type Metered interface {
	Meter(l *weir.Limit) (unit, rate, full int64)
}

// Edged is a Scripted algorithm whose windows a script can't compute, such as months. Edges
// returns where windows begin, in µs since 1970 and in order, from before the instant at to
// well after it. Its Lua gets them as one more argument after burst: packed doubles for
// struct.unpack, with a 0 between several runs of them. If it needs the window of an instant
// outside of them, it calls error(string.format('WEIR edges %.0f ', instant)): the store then
// asks again, with the edges around that instant.
type Edged interface {
	Edges(at int64) []int64
}

// Additive is a Scripted algorithm for which, once it has been charged at an instant, a
// charge of m units and one of n at that instant are the same as one of m + n. Then n
// transactions that ask the same of one key are decided in one step, see TakeEach. An
// algorithm that counts requests, whatever their cost, is not additive.
type Additive interface {
	Additive()
}

// Logged is a Scripted algorithm whose states are logs. The limits of a rule and key
// share a value, and their Lua works on the table of a charge, as general.lua makes it:
//
//	open_logs(group, charges)          reads the value group.key
//	take(c, at, cost, quota, period)   returns the wait in µs, or −1
//	cancel(c, now, of, n, floor)       finds what is to be given back
//	describe_log(c, target, more)      returns what Go may ask of the log, as numbers
//	spend_logs(group, now, forget)     writes the value
type Logged interface {
	Logged()
}

var (
	//go:embed struct.lua
	structLua string
	//go:embed direct.lua
	directLua string
	//go:embed logs.lua
	logsLua string
	//go:embed general.lua
	generalLua string
)

// A script is a text and the name by which Redis knows it.
type script struct {
	text, sha  string
	algorithms []string    // names, as rows count them
	sent       atomic.Bool // by a batch
}

// A charge of a shape has an algorithm and may be a look.
type shaped struct {
	algorithm weir.Algorithm
	look      bool
}

// maxDirect is how many charges a script decides without a loop: Lua has 200 registers
// for a function.
const maxDirect = 16

// generate writes the script for transactions of a shape: of charges of one rule and
// key, which all spend the same or look, in one value that holds just their states. It
// decides them without a loop or a table. What is none of that, or waits, is left to
// general.lua, which stands behind it.
func generate(shape []shaped) (*script, error) {
	x := &script{}
	of := make([]int, len(shape))
	var algorithms []weir.Algorithm
	direct, logs := len(shape) <= maxDirect, false
	for i, c := range shape {
		if _, ok := c.algorithm.(Scripted); !ok {
			return nil, fmt.Errorf("redisstore: algorithm %q has no Lua, so Redis can't run it, see Scripted: %w", c.algorithm.Name(), errors.ErrUnsupported)
		}
		of[i] = slices.Index(x.algorithms, c.algorithm.Name()) + 1
		if of[i] == 0 {
			x.algorithms = append(x.algorithms, c.algorithm.Name())
			algorithms = append(algorithms, c.algorithm)
			of[i] = len(algorithms)
		}
		logs = logs || isLog(c.algorithm)
	}
	var b lua
	b.WriteString(structLua)
	b.line("local t = redis.call('TIME')")
	b.line("local now = t[1] * 1000000 + t[2]")
	b.line("local rows, within, delay, times, edges_from")
	switch {
	case direct && !logs:
		var takes lua
		for i, a := range algorithms {
			takes.line("local take%d\ndo\n%s\ntake%[1]d = take\nend", i+1, takeOnly(a))
		}
		b.WriteString(strings.Replace(expand(directLua, shape, of), "TAKES", takes.String(), 1))
	case direct && len(algorithms) == 1:
		b.WriteString(expand(logsLua, shape, of))
	}
	b.line("local function ms(us) return math.ceil(us / 1000) + 1 end")
	b.line("local algorithms = {}")
	for i, a := range algorithms {
		b.algorithm(a, i+1)
	}
	b.WriteString(generalLua)
	x.text = b.String()
	sum := sha1.Sum([]byte(x.text))
	x.sha = hex.EncodeToString(sum[:])
	return x, nil
}

// A lua is the text of a script as it is written.
type lua struct{ strings.Builder }

func (b *lua) line(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// algorithm writes all functions of the i-th algorithm.
func (b *lua) algorithm(a weir.Algorithm, i int) {
	functions := []string{"take"}
	if _, ok := a.(weir.Canceler); ok {
		functions = append(functions, "cancel")
	}
	if _, ok := a.(weir.Queuer); ok {
		functions = append(functions, "queue")
	}
	if isLog(a) {
		functions = append(functions, "open_logs", "describe_log", "spend_logs")
	}
	_, edged := a.(Edged)
	fields := fmt.Sprintf("edged = %v", edged)
	for _, f := range functions {
		name, _, _ := strings.Cut(f, "_")
		fields += fmt.Sprintf(", %s = %s", name, f)
	}
	b.line("do\n%s\nalgorithms[%d] = {%s}\nend", a.(Scripted).Lua(), i, fields)
}

// takeOnly returns the part of an algorithm's Lua that its take needs. To make a
// function that is not called costs 1 % of a check.
func takeOnly(a weir.Algorithm) string {
	text := a.(Scripted).Lua()
	for _, f := range []string{"cancel", "queue"} {
		text, _, _ = strings.Cut(text, "local function "+f+"(")
	}
	return text
}

var repeated = regexp.MustCompile(`«([?!]?)([^|»]*)(\|[^»]*)?»`)

// expand repeats what stands between « and » for each charge: after ? for those that spend,
// after ! for looks. There # is the number of the charge, @ that of its algorithm, $ its cost,
// and & the edges of its windows. What stands behind | comes between two of them, or a comma.
func expand(text string, shape []shaped, of []int) string {
	edges := 2
	charges := make([]*strings.Replacer, len(shape))
	for i, c := range shape {
		cost, edge := "cost", ""
		if c.look {
			cost = "0"
		}
		if _, ok := c.algorithm.(Edged); ok {
			edges++
			edge = fmt.Sprintf(", ARGV[%d]", edges)
		}
		charges[i] = strings.NewReplacer("#", strconv.Itoa(i+1), "@", strconv.Itoa(of[i]), "$", cost, "&", edge)
	}
	return repeated.ReplaceAllStringFunc(text, func(text string) string {
		m := repeated.FindStringSubmatch(text)
		var parts []string
		for i, c := range shape {
			if m[1] == "" || (m[1] == "!") == c.look {
				parts = append(parts, charges[i].Replace(m[2]))
			}
		}
		return strings.Join(parts, cmp.Or(m[3], "|, ")[1:])
	})
}

// maxScripts bounds how many shapes of a Store have a script of their own: Redis keeps
// each for ever.
const maxScripts = 64

// scripts are what a Store has generated, by the names of their algorithms. There are
// few, because the numbers and names of limits are arguments.
type scripts struct {
	mu  sync.RWMutex
	of  map[string]*script
	all []shaped // of the shapes that have no script of their own
}

// find returns the script of a shape, which it generates if need be. If there are too many
// already it is not the shape's own but one that has its algorithms.
func (s *scripts) find(shape []shaped) (_ *script, own bool, err error) {
	var here [128]byte
	name := appendNames(here[:0], shape)
	s.mu.RLock()
	x := s.of[string(name)]
	s.mu.RUnlock()
	if x != nil {
		return x, true, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own = len(s.of) < maxScripts
	if !own {
		for _, c := range shape {
			s.all = insert(s.all, c.algorithm)
		}
		shape = s.all
		name = appendNames(name[:0], shape)
	}
	if s.of[string(name)] == nil {
		x, err := generate(shape)
		if err != nil {
			return nil, false, err
		}
		if s.of == nil {
			s.of = map[string]*script{}
		}
		s.of[string(name)] = x
	}
	return s.of[string(name)], own, nil
}

// insert adds an algorithm to a shape in the order of names, if it is not there.
func insert(shape []shaped, a weir.Algorithm) []shaped {
	i, found := slices.BinarySearchFunc(shape, a.Name(), func(c shaped, name string) int { return strings.Compare(c.algorithm.Name(), name) })
	if found {
		return shape
	}
	return slices.Insert(shape, i, shaped{algorithm: a})
}

func appendNames(b []byte, shape []shaped) []byte {
	for _, c := range shape {
		b = c.appendName(b)
	}
	return b
}

// appendName separates a name from the next, whatever is in it: no name has a line
// break or a tab.
func (c shaped) appendName(b []byte) []byte {
	b = append(b, c.algorithm.Name()...)
	if c.look {
		return append(b, '\t')
	}
	return append(b, '\n')
}

// isLog reports whether the states of an algorithm are logs, which have a value of their
// own.
func isLog(a weir.Algorithm) bool {
	_, ok := a.(Logged)
	return ok
}
