package redisstore

import "github.com/seed83679106/weir/quota"

// Scripted is an algorithm that can run in Redis. The Lua code must make exactly the same decisions
// as the Take method; storetest.Limits tests this. The code defines the function
//
//	local function take(at, a, b, till, now, cost, quota, period, burst)
//
// The first four arguments are the At, A, B and Until fields of the state; for a new key, all four
// are 0. Both now and period are in µs, and cost is never 0. The time now is never earlier than the
// state's At. If the At is in the future, the script passes it as now, and adds the time until then
// to the wait that the function returns.
//
// If the cost fits, the take function returns 0 and the four numbers of the new state. Otherwise,
// it returns the time in µs from now until the cost fits, or −1 if the cost will never fit. A
// negative cost refunds units and always fits. The fourth number of the new state is its expiry
// time: from then on, the state must lead to the same decisions as a new key. In Redis, numbers are
// float64, which represents integers below 2^53 exactly; each returned number must be such an
// integer. In Lua 5.4, functions such as math.floor return integers, whose arithmetic overflows
// at 2^63, and string.format('%d') rejects numbers with a fraction.
//
// Each function receives two more arguments after burst: the edges (if the algorithm has the method
// Edges, see below) and the C field of the state. If the C field of the new state is not 0, the
// take, queue and cancel functions return it as a fifth number. Only the force function may change
// C from 0 to another value.
//
// The code must define only local names, because a script can contain the code of several
// algorithms. Two algorithms with the same Name must have the same code, because a script contains
// only one of them.
//
// The code of an optional.Queuer also defines a queue function, the code of an optional.Canceler
// defines a cancel function, and the code of an optional.Forcer defines a force function. Define
// these functions after the take function and after every function that it calls:
//
//	local function queue(at, a, b, till, now, slot, cost, quota, period, burst)
//	local function cancel(at, a, b, till, now, of, n, quota, period, burst)
//	local function force(at, a, b, till, now, cost, quota, period, burst)
//
// For the queue and cancel functions, now is the time of the clock, which may be earlier than the
// state's At. The queue function finds the first free place in the queue at or after the time in
// its sixth argument. It returns the wait in µs and a boolean that reports whether there is room.
// If there is room, it also returns the four numbers of the new state. The cancel function refunds
// units that were spent at one instant, which is its sixth argument. The seventh argument is the
// number of units. The function returns the four numbers of the new state, or nothing if no units
// were spent at that instant. The force function returns the four numbers of the new state,
// followed by the C field. If it spends nothing, it returns nothing.
//
// An algorithm can have two more methods. Edges is for windows, such as calendar months, whose
// boundaries a script cannot compute:
//
//	Edges(at int64) []int64
//
// Edges returns the start times of consecutive windows in ascending order, in µs since 1970. The
// first of these times is earlier than the given one, and the last is well after it. The Lua
// functions receive these edges as a string of packed doubles, to be decoded with struct.unpack. If
// the store has called Edges several times, the results of successive calls are separated by a 0.
// If an edge is missing in the string, the Lua code must call error(string.format('WEIR edges %.0f
// ', instant)). The store then adds the edges around that instant and runs the script again.
//
// The method Additive() does nothing. It declares that only the total cost of the charges at an
// instant matters: after a first charge, charges of 2 and 3 units at the same instant have the same
// effect as one charge of 5 units. Store.TakeEach can then evaluate many identical transactions
// with one key in a single step. An algorithm that counts requests regardless of their cost is not
// additive.
type Scripted interface {
	Lua() string
}

// An edged algorithm has the method Edges: see Scripted.
type edged interface {
	Edges(at int64) []int64
}

// An additive algorithm has the method Additive: see Scripted.
type additive interface {
	Additive()
}

// A logged algorithm keeps a log as its state. It must belong to this module, because its Lua code
// accesses the tables of general.lua. For each rule and key, Redis stores all logs in one value.
// The Lua code defines these functions, where c is the table of a charge:
//
//	open_logs(group, charges)          reads the value group.key
//	take(c, at, cost, quota, period)   returns the wait in µs, or −1
//	cancel(c, now, of, n, floor)       finds the units to refund
//	describe_log(c, target, more)      returns the numbers of the log that Take may look at
//	spend_logs(group, now, forget)     writes the value
type logged interface {
	Logged()
}

// An inlined algorithm must belong to this module. A function call in Redis takes at least 0.1 µs,
// so direct scripts contain the lines that Inline returns instead of a call: see meter.lua.
type inlined interface {
	Inline() string
}

func isEdged(a quota.Algorithm) bool {
	_, ok := a.(edged)
	return ok
}

// isLog reports whether the states of an algorithm are logs. Redis stores logs in a separate value.
func isLog(a quota.Algorithm) bool {
	_, ok := a.(logged)
	return ok
}
