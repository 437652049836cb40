package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// An own algorithm has the name and the Lua that a test gives it.
type own struct {
	quota.Algorithm
	name, lua string
}

func (o own) Name() string { return o.name }
func (o own) Lua() string  { return o.lua }

// TestScriptedMistakes: if the Lua of an algorithm has a mistake, the error quotes the
// line, or names the rule and limit.
func TestScriptedMistakes(t *testing.T) {
	rdb := client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()}))
	store := newStore(t, rdb)
	for _, test := range []struct{ name, lua, want string }{
		{"syntax", "local function take(at)\n  retrn 0\nend", "of the script of syntax: retrn 0)"},
		{"other-name", "local function tke() return 0 end", "global variable 'take'"},
		{"global", "function take() return 0 end", "of the script of global: function take() return 0 end)"},
		{"nil", "local function take(at)\n  return at + nil\nend", "of the script of nil: return at + nil)"},
		{"nothing", "local function take() end", `rule "r": limit "1h" (nothing): the server cannot decide under this algorithm, whatever the key: Redis and Go decide differently`},
		{"refuses", "local function take() return 7 end", `rule "r": limit "1h" (refuses): the server cannot decide under this algorithm, whatever the key: Redis and Go decide differently`},
		{"fraction", "local function take(at, a, b, till, now) return 0, now, 0.5, 0, now + 60000000 end", `rule "r": limit "1h" (fraction): the server cannot decide under this algorithm, whatever the key: its state in Redis can't be read, or has a number that is no integer`},
	} {
		tx := func() *quota.Transaction {
			limit := quota.Limit{Algorithm: own{algorithms.FixedWindow(9, time.Hour).Algorithm, test.name, test.lua}, Quota: 9, Period: time.Hour}
			return &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
		}
		store.Take(t.Context(), tx()) // the second call reads what the first has stored
		errs := append(store.TakeEach(t.Context(), []*quota.Transaction{tx()}), store.Take(t.Context(), tx()))
		for _, err := range errs {
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v, want %s", test.name, err, test.want)
			}
		}
	}
}

// TestScriptedLua54: on Lua 5.4, too, the time is a float, so an algorithm may multiply it by
// other numbers.
func TestScriptedLua54(t *testing.T) {
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: redistest.Lua54(t).Addr()})))
	a := algorithms.FixedWindow(1<<30, time.Hour).Algorithm
	lua, cancel, _ := strings.Cut(a.(redisstore.Scripted).Lua(), "local function cancel(")
	lua += `
local decide = take
local function take(at, a, b, till, now, cost, quota, period)
  if (now - at) * quota < 0 then return -1 end
  return decide(at, a, b, till, now, cost, quota, period)
end
local function cancel(` + cancel
	limit := quota.Limit{Algorithm: own{a, "product", lua}, Quota: 1 << 30, Period: time.Hour}
	tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
	if err := store.Take(t.Context(), tx); err != nil || !tx.Allowed() {
		t.Errorf("got %+v, %v, want the charge allowed", tx.Decisions, err)
	}
}

// A double is an algorithm under which a unit costs two units of another meter.
type double struct{ own }

func (d double) Take(s quota.State, l *quota.Limit, now, cost int64) (quota.State, quota.Decision) {
	return d.own.Take(s, l, now, 2*cost)
}

func (d double) Meter(l *quota.Limit) (unit, rate, full int64) {
	return d.Algorithm.(quota.Metered).Meter(l)
}

// TestScriptedLayout: the Lua of an algorithm need not be indented, so a function that take
// defines may begin a line. If the Lua defines take twice, the second take decides.
func TestScriptedLayout(t *testing.T) {
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})))
	limit := algorithms.GCRA(6, 10_000*time.Hour)
	first, _, _ := strings.Cut(limit.Algorithm.(redisstore.Scripted).Lua(), "local function cancel(")
	limit.Algorithm = double{own{limit.Algorithm, "flat", first + `
local inner = take
local function take(at, a, b, till, now, cost, unit, rate, full, edges, c)
local function twice(n)
return 2 * n
end
return inner(at, a, b, till, now, twice(cost), unit, rate, full, edges, c)
end
`}}
	for i := range 5 {
		tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
		if err := store.Take(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if want := i < 3; tx.Allowed() != want {
			t.Errorf("%d: got allowed %v, want %v", i, tx.Allowed(), want)
		}
	}
}

// A listed is an algorithm that can't be compared with ==.
type listed struct {
	own
	list []int
}

func (listed) Additive() {}

// TestNotComparable: a batch may have algorithms whose values cannot be compared with ==.
func TestNotComparable(t *testing.T) {
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})))
	fixed := algorithms.FixedWindow(3, 10_000*time.Hour)
	limit := fixed
	limit.Algorithm = listed{own{fixed.Algorithm, "listed", fixed.Algorithm.(redisstore.Scripted).Lua()}, []int{1}}
	var batch []*quota.Transaction
	for range 5 {
		batch = append(batch, &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}})
	}
	for i, err := range store.TakeEach(t.Context(), batch) {
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	for i, tx := range batch {
		if want := i < 3; tx.Allowed() != want {
			t.Errorf("%d: got allowed %v, want %v", i, tx.Allowed(), want)
		}
	}
}
