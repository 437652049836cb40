package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

var (
	//go:embed direct.lua
	directLua string
	//go:embed logs.lua
	logsLua string
	//go:embed loop.lua
	loopLua string
	//go:embed general.lua
	generalLua string
)

// A script holds the text of a script, and the hash by which Redis identifies it.
type script struct {
	text, sha  string
	algorithms []string // the names of the script's algorithms; a row contains an index in this list
	sent       sync.Map // *server → time.Time: the time of the last batch that found the script on the node
}

// A shape, which is a []shaped, describes the transactions for which a script is made. It has an
// element for each charge. The charges are grouped by value.
type shaped struct {
	algorithm quota.Algorithm
	kind      kind
	next      bool // the charge's state is in a different value than that of the previous charge
}

// A kind determines what a script does with a charge. In the name of a shape, the kind follows the
// name of the algorithm, which cannot contain these characters.
type kind byte

const (
	spends  kind = '\n' // or refunds the newest units
	leaves  kind = '\v' // spends, if the headroom is left
	looks   kind = '\t' // the cost is 0
	cancels kind = '\r' // refunds units that were spent at a given instant
)

// maxDirect limits the number of charges that a script evaluates without a loop, because a Lua
// function has at most 200 local variables. A charge needs up to 8, and an algorithm 2. A loop takes
// up to twice as long.
const maxDirect = 18

// isDirect reports whether the script of a shape has a direct part. A log counts as two charges.
func isDirect(shape []shaped) bool {
	size := len(shape)
	for i, c := range shape {
		if isLog(c.algorithm) {
			size++
		}
		if i > 0 && !c.next && isLog(c.algorithm) != isLog(shape[i-1].algorithm) {
			return false
		}
	}
	return size <= maxDirect
}

// generate writes the script of a shape. The script begins with a direct part, which evaluates a
// transaction without a table and without a loop over the charges. This part contains direct.lua or
// logs.lua for each value, and then the lines that write the values if all charges fit. There is no
// direct part if the shape has too many charges, or if a value has logs and states of other
// algorithms (see isDirect). Such a shape is only a set of algorithms, and loop.lua evaluates the
// charges. Every script ends with general.lua, which evaluates all other transactions with the same
// algorithms.
func (s *scripts) generate(shape []shaped) (*script, error) {
	x := &script{}
	sections, algorithms := sectionsOf(shape)
	for _, a := range algorithms {
		if _, ok := a.(Scripted); !ok {
			return nil, &unusable{fmt.Sprintf("algorithm %q has no Lua, so Redis can't run it, see Scripted", a.Name()), errors.ErrUnsupported}
		}
		x.algorithms = append(x.algorithms, a.Name())
	}
	var b luaText
	b.WriteString(s.prologue())
	b.line("local rows, within, times")
	if slices.ContainsFunc(algorithms, isLog) {
		leave, _, _ := strings.Cut(logsLua, "-- value\n")
		b.WriteString(leave)
	}
	if isDirect(shape) {
		b.direct(sections, algorithms)
	}
	b.line("local function ms(us) return math.ceil(us / 1000) + 1 + slack_ms end")
	b.line("local algorithms = {}")
	for i, a := range algorithms {
		if !isLog(a) {
			b.algorithm(a, i+1)
		}
	}
	b.WriteString(loopLua) // before the functions of logs, which loop.lua does not need
	for i, a := range algorithms {
		if isLog(a) {
			b.algorithm(a, i+1)
		}
	}
	b.WriteString(generalLua)
	x.text = b.String()
	sum := sha1.Sum([]byte(x.text))
	x.sha = hex.EncodeToString(sum[:])
	return x, nil
}

// A luaText holds the text of a script while generate writes it.
type luaText struct{ strings.Builder }

func (b *luaText) line(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// algorithm writes all functions of algorithm i.
func (b *luaText) algorithm(a quota.Algorithm, i int) {
	functions := []string{"take"}
	if _, ok := a.(optional.Canceler); ok {
		functions = append(functions, "cancel")
	}
	if _, ok := a.(optional.Queuer); ok {
		functions = append(functions, "queue")
	}
	if _, ok := a.(optional.Forcer); ok {
		functions = append(functions, "force")
	}
	if isLog(a) {
		functions = append(functions, "open_logs", "describe_log", "spend_logs")
	}
	fields := fmt.Sprintf("edged = %v", isEdged(a))
	for _, f := range functions {
		name, _, _ := strings.Cut(f, "_")
		fields += fmt.Sprintf(", %s = %s", name, f)
	}
	b.line("do\n%s\nalgorithms[%d] = {%s}\nend", a.(Scripted).Lua(), i, fields)
}

// maxScripts is the number of shapes of a Store that get a separate script. There is a bound
// because Redis keeps every script until it restarts.
const maxScripts = 64

// scripts holds the scripts of a Store by the names of their shapes: see appendNames. There are few
// scripts, because the numbers and names of limits are passed as arguments.
type scripts struct {
	mu  sync.RWMutex
	of  map[string]*script
	all []shaped // the algorithms of shapes without a separate script

	first string // the first line of every script, or "": see Options.LockKeys
	time  string // how every script gets the time: see calledTime and sentTime
}

// prologue returns the lines with which every script begins.
func (s *scripts) prologue() string { return s.first + s.time }

// find returns the script of a shape. If there are already maxScripts scripts, a new shape gets no
// separate script. Then own is false, and find returns a script that contains at least the shape's
// algorithms.
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
		x, err := s.generate(shape)
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

// insert adds an algorithm to a shape that is sorted by name, unless the shape contains
// it.
func insert(shape []shaped, a quota.Algorithm) []shaped {
	i, found := slices.BinarySearchFunc(shape, a.Name(), func(c shaped, name string) int {
		return strings.Compare(c.algorithm.Name(), name)
	})
	if found {
		return shape
	}
	return slices.Insert(shape, i, shaped{algorithm: a, kind: spends})
}

func appendNames(b []byte, shape []shaped) []byte {
	for _, c := range shape {
		if c.next {
			b = append(b, '\f')
		}
		b = append(append(b, c.algorithm.Name()...), byte(c.kind))
	}
	return b
}
