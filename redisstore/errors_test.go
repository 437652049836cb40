package redisstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestCorrupt: if a value cannot be read, the error names the rule and the limit, but
// neither the key nor the content of the value.
func TestCorrupt(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	const key, secret = "alice@example.com", "hunter2"
	now := time.Now().UnixMicro()
	for _, limit := range []quota.Limit{
		algorithms.GCRA(5, time.Minute).Named("few"), algorithms.AnchoredWindow(5, time.Minute).Named("few"),
		algorithms.SlidingLog(5, time.Minute).Named("few"), algorithms.Calendar(5, algorithms.Day, nil).Named("few"),
	} {
		for _, cost := range []int64{0, 1, 2} {
			charge := quota.Charge{Rule: "login", Key: key, Limit: limit, Cost: cost}
			name := store.Key(&charge)
			id := "few/" + limit.Algorithm.Name()
			state := strings.Repeat("\x00", 32)
			nan := strings.Repeat("\xff", 32)
			for _, write := range []func() error{
				func() error { return rdb.Set(t.Context(), name, secret, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, "", time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, ";", time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, secret+";", time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+";"+secret, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+";"+state[1:], time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+";"+state+secret, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+",other;"+state, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+";"+nan, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, "other;"+nan, time.Minute).Err() },
				func() error {
					return rdb.Set(t.Context(), name, id+";"+strings.Repeat(secret+"  ", 4)[:32], time.Minute).Err()
				},
				func() error { return rdb.RPush(t.Context(), name, secret).Err() },
				func() error { return rdb.RPush(t.Context(), name, now, secret).Err() },
				func() error { return rdb.RPush(t.Context(), name, secret, "="+id+"#"+secret).Err() },
				func() error { return rdb.HSet(t.Context(), name, secret, secret).Err() },
			} {
				rdb.Del(t.Context(), name)
				if err := write(); err != nil {
					t.Fatal(err)
				}
				if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}}); err != nil {
					checkDiscreet(t, charge, err, secret)
				} else if limit.Algorithm.Name() != "sliding-log" { // a damaged log may be taken for an empty one
					dump, _ := rdb.Dump(t.Context(), name).Result()
					t.Errorf("%v, cost %d: got no error of %q", limit, cost, dump)
				}
			}
		}
	}
}

// checkDiscreet checks that an error names the rule and the limit, and neither the key nor
// the value.
func checkDiscreet(t *testing.T, c quota.Charge, err error, secret string) {
	t.Helper()
	text := err.Error()
	if strings.Contains(text, c.Key) || strings.Contains(text, secret) || strings.Contains(text, "9999") {
		t.Errorf("%v, cost %d: the error has the key or the value: %s", c.Limit, c.Cost, text)
	}
	if !strings.HasPrefix(text, `redisstore: rule "login": limit "few"`) {
		t.Errorf("%v, cost %d: the error names neither rule nor limit: %s", c.Limit, c.Cost, text)
	}
}

// TestForeignKey: if the value of one of several keys has another type or is damaged, the error names the rule
// and the limit of that key, or says that they are one of several.
func TestForeignKey(t *testing.T) {
	rdb, store := open(t)
	tx := &quota.Transaction{Charges: []quota.Charge{
		{Rule: "api", Key: "alice", Limit: algorithms.GCRA(5, time.Minute), Cost: 1},
		{Rule: "login", Key: "bob", Limit: algorithms.SlidingLog(5, time.Minute).Named("few"), Cost: 1},
		{Rule: "search", Key: "bob", Limit: algorithms.GCRA(5, time.Hour), Cost: 1},
	}}
	for i, want := range []string{`rule "api": limit "1m" (gcra): `, `rule "login": limit "few" (sliding-log): `, `rule "search": limit "1h" (gcra): `} {
		rdb.FlushDB(t.Context())
		rdb.RPush(t.Context(), store.Key(&tx.Charges[i]), "secret")
		for mode, want := range []string{
			"redisstore: " + want + "Redis answers: WRONGTYPE Operation against",
			`redisstore: rule "api": limit "1m" (gcra): or another limit of the request: Redis answers: WRONGTYPE `,
		} {
			tx.Mode = quota.Mode(mode) // ModeSpend, ModePeek
			if err := store.Take(t.Context(), tx); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("charge %d, mode %d: got error %v, want %q", i, mode, err, want)
			}
		}
	}

	tx.Mode = quota.ModeSpend
	rdb.FlushDB(t.Context())
	if err := store.Take(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	log := store.Key(&tx.Charges[1])
	text, err := rdb.HGet(t.Context(), log, "h").Result()
	if err != nil {
		t.Fatal(err)
	}
	rdb.HSet(t.Context(), log, "h", text[:strings.Index(text, ";")+9]) // the line of the script that reads the rest names no key
	const want = `redisstore: rule "api": limit "1m" (gcra): or another limit of the request: its state in Redis can't be read`
	if err := store.Take(t.Context(), tx); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("a damaged log: got error %v, want %q", err, want)
	}
}

// TestCorruptLog: whatever another program writes into a log, the script ends. If Take returns
// an error, the error names the rule and the limit.
func TestCorruptLog(t *testing.T) {
	rdb, store := logOpen(t)
	limit := algorithms.SlidingLog(1000, time.Hour).Named("few")
	double := func(x float64) string {
		return string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(x)))
	}
	const head = len("few/1h/sliding-log;")
	for name, test := range map[string]struct {
		field string
		at    int    // where the damage begins in the field; field h begins with the ids
		bytes string // the damage
	}{
		"the last block is 2^32-1":          {"h", head + 24, "\xff\xff\xff\xff"},
		"the first block is 0":              {"h", head + 20, "\x00\x00\x00\x00"},
		"the first block is after the last": {"h", head + 20, "\x07\x00\x00\x00"},
		"a limit begins in block 0":         {"h", head + 64, "\x00\x00\x00\x00"},
		"a limit begins in block 9":         {"h", head + 64, "\x09\x00\x00\x00"},
		"NaN is kept":                       {"h", head + 32, double(math.NaN())},
		"it is kept for 100 years":          {"h", head + 32, double(100 * 365 * 86400e6)},
		"the newest instant is in 2200":     {"h", head + 4, double(230 * 365 * 86400e6)},
		"NaN is spent":                      {"h", head + 40, double(math.NaN())},
		"less than nothing is spent":        {"h", head + 40, double(-1e12)},
		"1e300 is when it began":            {"h", head + 48, double(1e300)},
		"the newest instant is infinite":    {"h", head + 4, double(math.Inf(1))},
		"the open block is of no kind":      {"h", head + 68, "x"},
		"a closed block is of no kind":      {"1:2", 0, "x"},
	} {
		for _, cost := range []int64{0, 1, 2000, -1} {
			charge := quota.Charge{Rule: "login", Key: name, Limit: limit, Cost: 1}
			key := store.Key(&charge)
			rdb.Del(t.Context(), key)
			fill(t, store, 200, charge)
			value := []byte(rdb.HGet(t.Context(), key, test.field).Val())
			copy(value[test.at:], test.bytes)
			if err := rdb.HSet(t.Context(), key, test.field, value).Err(); err != nil {
				t.Fatal(err)
			}
			charge.Cost = cost
			tx, err := takeCorrupt(t, store, name, charge)
			if err == nil && test.field == "h" && cost != 1 { // a charge that fits does not read the whole log
				t.Errorf("%s, cost %d: got %+v, want an error", name, cost, tx.Decisions)
			}

		}
	}
	// Now each field is cut off after each of its bytes.
	charge := quota.Charge{Rule: "login", Key: "cut", Limit: limit, Cost: 1}
	key := store.Key(&charge)
	fill(t, store, 200, charge)
	for _, field := range []string{"h", "1:1", "1:2", "1:3"} {
		whole := rdb.HGet(t.Context(), key, field).Val()
		for n := range len(whole) {
			rdb.HSet(t.Context(), key, field, whole[:n])
			tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "login", Key: "cut", Limit: limit, Cost: 1001}}, Within: time.Minute}
			if n%2 == 0 {
				tx.Charges[0].Cost, tx.Charges[0].Spent = -1, time.Now().UnixMicro()
			}
			if err := store.Take(t.Context(), tx); err != nil && !strings.HasPrefix(err.Error(), `redisstore: rule "login": limit "few"`) {
				t.Fatalf("%d of %d bytes of field %s: got the error %v", n, len(whole), field, err)
			}
		}
		rdb.HSet(t.Context(), key, field, whole)
	}
}

// takeCorrupt makes a charge that may wait, on a log that may be corrupt. If Take returns an
// error, the error must name the rule and the limit.
func takeCorrupt(t *testing.T, store quota.Store, what string, c quota.Charge) (*quota.Transaction, error) {
	t.Helper()
	tx := &quota.Transaction{Charges: []quota.Charge{c}, Within: time.Minute}
	err := store.Take(t.Context(), tx)
	if err != nil && !strings.HasPrefix(err.Error(), `redisstore: rule "login": limit "few" (sliding-log): `) {
		t.Fatalf("%s, cost %d: got the error %v, want one that names rule and limit", what, c.Cost, err)
	}
	return tx, err
}

// TestCorruptTill: a state with a damaged end does not make a value live longer than the
// limits need, however often the value is written.
func TestCorruptTill(t *testing.T) {
	rdb, store := open(t)
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.AnchoredWindow(5, time.Minute).Named("l"), Cost: 1}
	name, now := store.Key(&charge), time.Now().UnixMicro()
	double := func(b []byte, x int64) []byte {
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(x)))
	}
	for _, test := range []struct {
		ids  string
		till int64
		ttl  time.Duration // the longest TTL after four charges; 0 means that Take returns an error
	}{
		{"l/anchored-window;", 1<<53 - 1, 0},
		{"other/anchored-window;", 1<<53 - 1, 0},
		{"other/anchored-window;", now + 365*86400e6, time.Hour + time.Second},
		{"other/anchored-window;", now + 30e6, time.Minute + 2*time.Second},
	} {
		value := []byte(test.ids)
		for _, x := range []int64{now, 1, now, test.till} {
			value = double(value, x)
		}
		if err := rdb.Set(t.Context(), name, value, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		var err error
		for range 4 {
			err = store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}})
			if (err == nil) != (test.ttl > 0) {
				t.Errorf("%s until %d: got error %v", test.ids, test.till, err)
			}
		}
		if got := rdb.PTTL(t.Context(), name).Val(); err == nil && (got <= 0 || got > test.ttl) {
			t.Errorf("%s until %d: got a TTL of %v, want %v at most", test.ids, test.till, got, test.ttl)
		}
	}
}

// TestFarTill: a store can read each state that it has written, also if the state ends as
// late as a state can. A forced debt ends up to 2^50 µs after now, or up to 2^51 µs if it lies
// behind a reservation, and a reservation of a sliding window ends up to 3 · 2^50 µs after now.
func TestFarTill(t *testing.T) {
	const most = quota.MaxTicks * time.Microsecond
	meter := algorithms.GCRA(1, time.Microsecond).WithBurst(quota.MaxTicks / 2)
	smaller := algorithms.GCRA(1, time.Microsecond).WithBurst(quota.MaxTicks/2 - 1)
	window := algorithms.SlidingWindow(9, most)
	_, store := open(t)
	force := func(l quota.Limit) quota.Transaction {
		return quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: quota.MaxTicks}}, Mode: quota.ModeForce}
	}
	wait := quota.Charge{Rule: "r", Key: "wait", Limit: algorithms.GCRA(1, most), Cost: 1}
	reserve := func(l quota.Limit, within time.Duration) quota.Transaction {
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: l.Capacity()}}, Within: within}
		if within > 0 { // the limit of the second charge makes the transaction wait
			tx.Charges = append(tx.Charges, wait)
		}
		return tx
	}
	for _, test := range []struct {
		name   string
		reset  time.Duration // and a minute less, because the clock runs
		writes []quota.Transaction
	}{
		{"forced", most, []quota.Transaction{force(meter), force(meter), force(meter)}},
		{"forced on an overdue debt", most, []quota.Transaction{reserve(meter, 0), force(smaller), force(smaller)}},
		{"forced behind a reservation", 2 * most, []quota.Transaction{reserve(meter, most), force(meter), force(meter)}},
		{"reserved", 2 * most, []quota.Transaction{reserve(window, most)}},
		{"forced on a reserved window", 2 * most, []quota.Transaction{reserve(window, most), force(window)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, tx := range []quota.Transaction{{Charges: []quota.Charge{wait}, Mode: quota.ModeForget}, {Charges: []quota.Charge{wait}}} {
				if err := store.Take(t.Context(), &tx); err != nil || !tx.Allowed() {
					t.Fatal(err, tx.Decisions)
				}
			}
			for i := range test.writes {
				tx := &test.writes[i]
				tx.Charges[0].Rule, tx.Charges[0].Key = "r", test.name
				if err := store.Take(t.Context(), tx); err != nil || !tx.Allowed() {
					t.Fatalf("call %d: got error %v and %+v, want it allowed", i, err, tx.Decisions)
				}
			}
			last := test.writes[len(test.writes)-1].Charges[0]
			for _, cost := range []int64{0, 1, -1} {
				last.Cost = cost
				tx := quota.Transaction{Charges: []quota.Charge{last}}
				if err := store.Take(t.Context(), &tx); err != nil || tx.Allowed() != (cost <= 0) || cost == 0 && tx.Decisions[0].ResetAfter < test.reset-time.Minute {
					t.Errorf("then a cost of %d: got error %v and %+v, want no error, and a ResetAfter of about %v", cost, err, tx.Decisions, test.reset)
				}
			}
		})
	}
}

// TestConnectionRefused: with any client, the error says that the connection was refused,
// and not only that there was no answer in time.
func TestConnectionRefused(t *testing.T) {
	const addr = "127.0.0.1:1" // no other program gets this port, unlike one that was free a moment ago
	for name, rdb := range map[string]redis.UniversalClient{
		"default": redis.NewClient(&redis.Options{Addr: addr}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}}),
		"tuned":   redis.NewUniversalClient(redisstore.ClientOptions(0, addr)),
	} {
		t.Run(name, func(t *testing.T) {
			defer rdb.Close()
			store, err := redisstore.New(rdb, redisstore.Options{Timeout: 500 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			tx := func() *quota.Transaction {
				return &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.GCRA(5, time.Minute), Cost: 1}}}
			}
			for range 2 {
				errs := []error{store.Take(context.Background(), tx())}
				errs = append(errs, store.TakeEach(context.Background(), []*quota.Transaction{tx(), tx()})...)
				for _, err := range errs {
					if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "connection refused") {
						t.Errorf("got %v, want a connection refused", err)
					}
				}
			}
		})
	}
}
