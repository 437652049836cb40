package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// clientOf returns a client whose Redis has the same reply to all commands but TIME and HELLO.
func clientOf(reply []byte) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:     "127.0.0.1:1", // in a bubble of testing/synctest no name can be looked up
		Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		MaxRetries: -1, DialerRetries: 1, ReadTimeout: 20 * time.Millisecond, ContextTimeoutEnabled: true, PoolSize: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go replyTo(server, reply)
			return client, nil
		},
	})
}

func replyTo(conn net.Conn, reply []byte) {
	redistest.Answer(conn, func(args []string) string {
		time.Sleep(100 * time.Microsecond) // the clock of a bubble goes on only while all sleep
		switch args[0] {
		case "hello":
			return "-ERR unknown command\r\n"
		case "time":
			return "*2\r\n$10\r\n1700000000\r\n$1\r\n1\r\n"
		}
		return string(reply)
	})
}

// bulk returns a reply with the given text.
func bulk(text string) []byte { return fmt.Appendf(nil, "$%d\r\n%s\r\n", len(text), text) }

// doubles packs numbers as the scripts do.
func doubles(numbers ...float64) string {
	var b []byte
	for _, x := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	return string(b)
}

// asked are transactions of all forms that the store sends.
func asked() []*quota.Transaction {
	var ts []*quota.Transaction
	for _, l := range []quota.Limit{
		algorithms.GCRA(10, time.Minute), algorithms.TokenBucket(10, 10, time.Minute), algorithms.LeakyBucket(10, 10, time.Minute),
		algorithms.FixedWindow(10, time.Minute), algorithms.AnchoredWindow(10, time.Minute), algorithms.SlidingWindow(10, time.Minute),
		algorithms.SlidingLog(10, time.Minute), algorithms.Calendar(10, algorithms.Month, nil), algorithms.InFlight(10, time.Minute),
	} {
		charge := func(cost int64) quota.Charge { return quota.Charge{Rule: "r", Key: "k", Limit: l, Cost: cost} }
		other := charge(1)
		other.Limit.Name = "other"
		far := charge(1)
		far.Key = "far"
		back := charge(-1)
		back.Spent = 1_700_000_000_000_000
		ts = append(ts,
			&quota.Transaction{Charges: []quota.Charge{charge(1)}},
			&quota.Transaction{Charges: []quota.Charge{charge(0)}},
			&quota.Transaction{Charges: []quota.Charge{charge(11)}},
			&quota.Transaction{Charges: []quota.Charge{charge(1), other}},
			&quota.Transaction{Charges: []quota.Charge{charge(1), far}},
			&quota.Transaction{Charges: []quota.Charge{back}},
			&quota.Transaction{Charges: []quota.Charge{charge(-1)}},
			&quota.Transaction{Charges: []quota.Charge{charge(1)}, Within: time.Hour},
			&quota.Transaction{Charges: []quota.Charge{charge(1)}, Mode: quota.ModePeek},
			&quota.Transaction{Charges: []quota.Charge{charge(1)}, Mode: quota.ModeAtMost, Most: 5},
			&quota.Transaction{Charges: []quota.Charge{charge(1)}, Mode: quota.ModeForce},
			&quota.Transaction{Charges: []quota.Charge{charge(1)}, Mode: quota.ModeForget},
		)
	}
	mixed := quota.Transaction{}
	for i, l := range []quota.Limit{algorithms.GCRA(10, time.Minute), algorithms.SlidingLog(10, time.Minute), algorithms.Calendar(10, algorithms.Month, nil)} {
		mixed.Charges = append(mixed.Charges, quota.Charge{Rule: "r", Key: "k", Limit: l.Named(fmt.Sprint(i)), Cost: 1})
	}
	return append(ts, &mixed)
}

// checkAnswer checks that a transaction has an error, or a decision without nonsense.
func checkAnswer(t *testing.T, reply string, what string, tx *quota.Transaction, err error) {
	t.Helper()
	if err != nil {
		return
	}
	if len(tx.Decisions) != len(tx.Charges) || tx.Wait < 0 || tx.Wait > max(tx.Within, 0) || tx.At.UnixMicro() < 0 {
		t.Errorf("%s of %q: got %+v", what, reply, tx)
	}
	for i, d := range tx.Decisions {
		if d.Remaining < -1 || d.RetryAfter < 0 || d.NextAfter < 0 || d.ResetAfter < 0 {
			t.Errorf("%s of %q: %v: got %+v", what, reply, tx.Charges[i].Limit, d)
		}
	}
}

// FuzzReply: whatever Redis replies, each question ends in an error or in a decision without
// nonsense, and nothing panics. The fuzzer makes values of the types that go-redis
// returns; TestReplies has the bytes.
func FuzzReply(f *testing.F) {
	for kind := range byte(6) {
		for _, text := range texts() {
			f.Add(kind, text)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, text string) {
		list := []any{}
		for _, part := range strings.Split(text, "\x00") {
			list = append(list, part)
		}
		n, _ := strconv.ParseInt(text, 10, 64)
		value, err := []any{text, n, list, []any{list, n, nil}, nil, map[any]any{text: n}}[kind%6], error(nil)
		if kind%6 == 4 {
			err = answerError(text)
		}
		askAllForms(t, text, value, err)
	})
}

// answerError is an error reply.
type answerError string

func (e answerError) Error() string { return string(e) }
func (answerError) RedisError()     {}

// texts are texts that no script should reply with.
func texts() []string {
	const head = "1700000000 5 1;"
	now := 1_700_000_000_000_005.0
	return []string{
		"", head, "1700000000 5 0;", "1700000000 5 -1;", "1700000000 5 9223372036854775807;", "9223372036854775807 5 1;", "-1 -1 1;", "1700000000 5 1;x",
		head + doubles(now), head + doubles(now, 1, 1, now), head + doubles(now, -1e15, 1, now), head + doubles(now, 1, 1, 9e15),
		head + doubles(now+9e15, 1, 1, now), head + "1m/gcra;" + doubles(now, 1, 1, now), head + doubles(now, 1, 1, now, now, 1, 1, now),
		head + doubles(0), head + doubles(-1), head + doubles(1e15), head + doubles(2, now, now), head + doubles(6, now, 0, 1, now, 2, now),
		head + doubles(6, now, 0, 2, now, 1, now), head + doubles(6, now, 0, 5, now, 5, now+9e15), head + doubles(6, now, 0, -5, now, 5, now), head + doubles(3, 1, 2, 3), head + doubles(math.NaN(), math.Inf(1), 0.5, 1e300),
		head + doubles(now, 1, 1, now, 6, now, 0, 1, now, 2, now, now, 1, 1, now),
	}
}

// replies are replies that no Redis should give.
func replies() (all [][]byte) {
	for _, text := range texts() {
		all = append(all, bulk(text))
	}
	for _, reply := range []string{
		"*0\r\n", "*1\r\n$0\r\n\r\n", "*1\r\n:1\r\n", "*2\r\n$0\r\n\r\n$0\r\n\r\n", "*3\r\n$0\r\n\r\n$1\r\n1\r\n$4\r\n1700\r\n", "*3\r\n$1\r\na\r\n$1\r\n1\r\n$4\r\n1700\r\n", "*-1\r\n", "$-1\r\n", ":1\r\n", ":-1\r\n", ":-2\r\n",
		":-9223372036854775808\r\n", "+OK\r\n", "-ERR x\r\n", "-NOSCRIPT x\r\n", "-MOVED\r\n", "-ASK 1 x\r\n", "-TRYAGAIN x\r\n", "-WEIR edges 1 \r\n",
		"-ERR user_script:99999999999999999999: x\r\n", "-ERR user_script:1: WEIR edges -9223372036854775808 \r\n", "-ERR user_script:1: WEIR edges 9223372036854775807 \r\n", "*2\r\n*2\r\n:1\r\n:2\r\n-ERR x\r\n",
		"_\r\n", "#t\r\n", ",1.5\r\n", "(1\r\n", "%1\r\n+a\r\n:1\r\n", "~1\r\n:1\r\n", ">1\r\n:1\r\n", "*9223372036854775807\r\n", "$9223372036854775807\r\n", "*1\r\n*-2\r\n", "$-5\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "\r\n", "\x15\x03\x01\x00\x02\x02\x46",
	} {
		all = append(all, []byte(reply))
	}
	return all
}

// replyStore explains replies. It is shared, because it generates its scripts only once.
var replyStore = &Store{prefix: "weir:", timeout: time.Second}

// askAllForms explains one reply to everything that a store asks.
func askAllForms(t *testing.T, reply string, value any, err error) {
	answer := func() queue.Cmd {
		cmd := redis.NewCmd(context.Background())
		cmd.SetVal(value)
		cmd.SetErr(err)
		return queue.Cmd{Cmd: cmd}
	}
	s := replyStore
	explain := func(what string, c *eval) {
		if err := s.prepare(c); err != nil {
			t.Fatal(err)
		}
		err := c.decide(s, answer())
		if at, ok := beyondEdges(err); ok {
			err = s.prepare(c, at)
			if err == nil {
				return // the store asks again
			}
		}
		for _, tx := range c.ts {
			checkAnswer(t, reply, what, tx, err)
		}
	}
	for _, tx := range asked() {
		explain("Take", &eval{ts: []*quota.Transaction{tx}})
	}
	explain("a batch", &eval{ts: []*quota.Transaction{asked()[0], asked()[0], asked()[0]}})
	_, _, _, _ = readOverrides(answer().StringSlice())
	probed, _ := answer().StringSlice()
	_, _ = s.readProbe(probed)
	_ = s.explain(err)
}

// TestReplies: whatever Redis replies, each method of a store returns, and none panics.
func TestReplies(t *testing.T) {
	for _, reply := range replies() {
		if rounds.Long() || rand.IntN(4) == 0 { // each store generates its scripts again
			synctest.Test(t, func(t *testing.T) { askAll(t, reply) })
		}
	}
}

// askAll calls every method of a store whose Redis has the same reply to all commands.
func askAll(t *testing.T, reply []byte) {
	rdb := clientOf(reply)
	defer rdb.Close()
	store, err := New(rdb, Options{Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, tx := range asked() {
		checkAnswer(t, string(reply), "Take", tx, store.Take(t.Context(), tx))
	}
	batch := []*quota.Transaction{asked()[0], asked()[1], asked()[0]}
	errs := store.TakeEach(t.Context(), batch)
	for i, tx := range batch {
		if errs == nil {
			checkAnswer(t, string(reply), "TakeEach", tx, nil)
		} else {
			checkAnswer(t, string(reply), "TakeEach", tx, errs[i])
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := store.Probe(ctx, asked()[0].Charges[0].Limit); err == nil {
		t.Errorf("%q: Probe returns no error", reply)
	}
	store.LoadOverrides(ctx, "")
	store.SaveOverride(ctx, "a", "b", 0, 1)
	store.Heartbeat(ctx, "a", "b")
	store.CompareLimits(ctx, "a", map[string]string{"b": "c"})
}

// TestHeartbeatWithoutInfo: a heartbeat names the server only if it knows the evictions, too, and the
// other way round.
func TestHeartbeatWithoutInfo(t *testing.T) {
	for info, want := range map[string]string{"abc 7": "abc 7", "- -": " 0", "abc -": " 0", "- 7": " 0"} {
		synctest.Test(t, func(t *testing.T) {
			rdb := clientOf(bulk("1 0 20000000 5000000 1 " + info + " x=1"))
			defer rdb.Close()
			store, err := New(rdb, Options{Timeout: 20 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			h, err := store.Heartbeat(t.Context(), "a", "x")
			if err != nil || fmt.Sprint(h.Server, " ", h.Evicted) != want || h.Processes != 1 {
				t.Errorf("%q: got %+v, error %v, want %q", info, h, err, want)
			}
		})
	}
}

// TestReplyStates: the same as FuzzReply, for replies with random states.
func TestReplyStates(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	for range 200 {
		numbers := make([]float64, 1+r.IntN(14))
		for i := range numbers {
			numbers[i] = math.Trunc([]float64{0, -1, 6, float64(r.IntN(20)), 1e9 * r.Float64(), 1_700_000_000_000_005 + 1e8*(r.Float64()-0.5), 9e15 * (2*r.Float64() - 1)}[r.IntN(7)])
		}
		text := fmt.Sprintf("1700000000 5 %d;", r.IntN(3)) + doubles(numbers...)
		askAllForms(t, text, text, nil)
		if t.Failed() {
			t.Fatalf("seed %d: %v", seed, numbers)
		}
	}
}
