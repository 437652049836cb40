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
)

// Scripted is an algorithm that can run in Redis. Its Lua code must make exactly the same decisions
// as its Take method; storetest.Limits tests this. The code defines the function
//
//	local function take(at, a, b, till, now, cost, quota, period, burst)
//
// The first four arguments are the At, A, B and Until fields of the state; for a new key, all four
// are 0. The now and period arguments are in µs, and the cost argument is never 0. The now argument
// is never earlier than the at argument. If the state's At is in the future, the script passes At
// as the now argument, and adds the time until At to the wait that the function returns. See Logged
// for algorithms that keep logs.
//
// If the cost fits, the take function returns 0 and the four numbers of the new state. Otherwise,
// it returns the time in µs from now until the cost fits, or −1 if the cost will never fit. A
// negative cost refunds units and always fits. The fourth number of the new state is its expiry
// time: from then on, the state must lead to the same decisions as a new key. In Redis, numbers are
// float64, which represents integers below 2^53 exactly; each returned number must be such an
// integer. In Lua 5.4, numbers below 2^31 may be integers. Integer arithmetic overflows at 2^63,
// and string.format('%d') rejects numbers with a fraction.
//
// Each function receives two more arguments after burst: the edges (if the algorithm is Edged) and
// the C field of the state. If the C field of the new state is not 0, the take, queue and cancel
// functions return it as a fifth number. Only the force function may change C from 0 to another
// value.
//
// The code must define only local names, because a script can contain the code of several
// algorithms. Two algorithms with the same Name must have the same code, because a script contains
// only one of them.
//
// The code of a quota.Queuer also defines a queue function, the code of a quota.Canceler defines a
// cancel function, and the code of a quota.Forcer defines a force function. Define these functions
// after the take function and after every function that it calls:
//
//	local function queue(at, a, b, till, now, turn, cost, quota, period, burst)
//	local function cancel(at, a, b, till, now, of, n, quota, period, burst)
//	local function force(at, a, b, till, now, cost, quota, period, burst)
//
// In the queue and cancel functions, the now argument is the clock time, which may be earlier than
// the state's At. The queue function finds the first free place in the queue at or after the time
// in its sixth argument. It returns the wait in µs and a boolean that says whether there is room.
// If there is room, it also returns the four numbers of the new state. The cancel function refunds
// units that were spent at one instant. It takes that instant as its sixth argument, and the number
// of units to refund as its seventh. It returns the four numbers of the new state, or nothing if no
// units were spent at that instant. The force function returns the four numbers of the new state,
// followed by its C field. If it spends nothing, it returns nothing.
type Scripted interface {
	Lua() string
}

// Edged is a Scripted algorithm with windows, such as calendar months, whose boundaries a script
// cannot compute. Edges returns the start times of consecutive windows in ascending order, in µs
// since 1970. The first of these times is earlier than the at argument, and the last is well after
// it. The Lua functions receive these edges as a string of packed doubles, to be decoded with
// struct.unpack. If the store has called Edges several times, the results of successive calls are
// separated by a 0. If the Lua code needs an edge that is not in the string, it calls
// error(string.format('WEIR edges %.0f ', instant)). The store then adds the edges around that
// instant and runs the script again.
type Edged interface {
	Edges(at int64) []int64
}

// Additive is a Scripted algorithm for which only the total cost of the charges at an instant
// matters. After a first charge, charges of 2 and 3 units at the same instant must have the same
// effect as one charge of 5 units. Store.TakeEach can then evaluate many identical transactions
// with one key in a single step. An algorithm that counts requests regardless of their cost is not
// additive.
type Additive interface {
	Additive()
}

// Logged is a Scripted algorithm that keeps a log as its state. For each rule and key, Redis stores
// all logs in one value. The Lua code of such an algorithm defines the following functions, where c
// is the table that general.lua creates for a charge:
//
//	open_logs(group, charges)          reads the value group.key
//	take(c, at, cost, quota, period)   returns the wait in µs, or −1
//	cancel(c, now, of, n, floor)       finds the units to refund
//	describe_log(c, target, more)      returns the numbers of the log that Take may look at
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

// A script is a text, and the hash by which Redis knows it.
type script struct {
	text, sha  string
	algorithms []string // the names of its algorithms; a row has an index in this list
	sent       sync.Map // *server → nil, for the nodes to which a batch has sent the text
}

// A shape describes the transactions that a script is made for. It has a shaped for each
// charge, value after value.
type shaped struct {
	algorithm quota.Algorithm
	kind      kind
	next      bool // the charge is the first of another value than the charge before it
}

// A kind says what a script does with a charge. It stands behind the algorithm in the name of a
// shape: no name of an algorithm contains it.
type kind byte

const (
	spends  kind = '\n' // or gives back the newest units
	looks   kind = '\t' // the cost is 0
	cancels kind = '\r' // gives back the units of an instant
)

// maxDirect bounds the charges that a script decides without a loop over them. A log counts
// twice. In Lua a function has at most 200 locals, and a charge takes up to 8.
const maxDirect = 20

func fits(shape []shaped) bool {
	n := len(shape)
	for _, c := range shape {
		if isLog(c.algorithm) {
			n++
		}
	}
	return n <= maxDirect
}

// generate writes the script of a shape. The script begins with a direct part, which decides a
// transaction without a table and without a loop over the charges: first direct.lua or logs.lua
// for each value, then what writes the values if all charges fit. A shape that has no direct
// part, because it has too many charges, or logs beside other algorithms in one value, is only
// a set of algorithms. Every script ends with general.lua, which decides all other transactions
// of its algorithms.
func (s *scripts) generate(shape []shaped) (*script, error) {
	x := &script{}
	of := make([]int, len(shape))
	var algorithms []quota.Algorithm
	direct := fits(shape)
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
		direct = direct && (i == 0 || c.next || isLog(c.algorithm) == isLog(shape[i-1].algorithm))
	}
	var b lua
	b.WriteString(structLua)
	b.line("local t = redis.call('TIME')")
	b.line("local now = t[1] * 1e6 + t[2]") // a float also in Lua 5.4: see mostInteger
	b.line("local catch_up")
	b.line("local rows, within, times")
	if direct {
		b.direct(shape, algorithms, of)
	}
	b.line("local function ms(us) return math.ceil(us / 1000) + 1 end")
	b.line("local algorithms = {}")
	for i, a := range algorithms {
		b.algorithm(a, i+1)
	}
	b.WriteString(generalLua)
	x.text = s.adapt(b.String())
	sum := sha1.Sum([]byte(x.text))
	x.sha = hex.EncodeToString(sum[:])
	return x, nil
}

// A lua is the text of a script while generate writes it.
type lua struct{ strings.Builder }

func (b *lua) line(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// algorithm writes all functions of the i-th algorithm.
func (b *lua) algorithm(a quota.Algorithm, i int) {
	functions := []string{"take"}
	if _, ok := a.(quota.Canceler); ok {
		functions = append(functions, "cancel")
	}
	if _, ok := a.(quota.Queuer); ok {
		functions = append(functions, "queue")
	}
	if _, ok := a.(quota.Forcer); ok {
		functions = append(functions, "force")
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

// maxScripts is how many shapes of a Store get a script of their own. There is a bound because
// Redis keeps every script until it restarts.
const maxScripts = 64

// scripts are the scripts of a Store, by the names of their shapes: see appendNames. There
// are few scripts, because the numbers and names of limits are arguments of a script.
type scripts struct {
	mu  sync.RWMutex
	of  map[string]*script
	all []shaped // the algorithms of shapes that have no script of their own

	first string            // the first line of every script of the Store, or ""
	time  *strings.Replacer // what the scripts have instead of TIME; nil for TIME
}

// adapt returns a script as the server needs it: see Options.
func (s *scripts) adapt(lua string) string {
	if s.time != nil {
		lua = s.time.Replace(lua)
	}
	return s.first + lua
}

// find returns the script of a shape. Once there are maxScripts scripts, a new shape gets a
// script that has at least its algorithms. The result own is then false.
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

// insert adds an algorithm to a shape that is sorted by name, unless the shape has it.
func insert(shape []shaped, a quota.Algorithm) []shaped {
	i, found := slices.BinarySearchFunc(shape, a.Name(), func(c shaped, name string) int { return strings.Compare(c.algorithm.Name(), name) })
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

// isLog reports whether the states of an algorithm are logs. Logs have a value of their own.
func isLog(a quota.Algorithm) bool {
	_, ok := a.(Logged)
	return ok
}
