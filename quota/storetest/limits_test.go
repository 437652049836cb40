package storetest_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
	"github.com/seed83679106/weir/redisstore"
)

// cooldown is the algorithm of docs/extending.md.
type cooldown struct{}

func (cooldown) Name() string { return "cooldown" } // part of stored keys, so it must never change

func (cooldown) Validate(l *quota.Limit) error {
	if l.Period > quota.MaxTicks*time.Microsecond {
		return errors.New("the period exceeds 2^50 µs") // At + period must stay below 2^53
	}
	return nil
}

func (cooldown) Take(s quota.State, l *quota.Limit, now, cost int64) (quota.State, quota.Decision) {
	period := l.Period.Microseconds()
	if cost < 0 { // refund: the key is available from now on, or from At if that is later
		s.At = max(now, s.At) - period
	}
	left := s.A * max(0, s.At+period-now) // µs until the next request; A is 0 for a key never seen, else 1
	free := left == 0
	switch {
	case cost > 0 && free:
		s, left = quota.State{At: now, A: 1}, period
	case cost < 0 && free:
		s = quota.State{}
	}
	d := quota.Decision{Allowed: cost <= 0 || free, NextAfter: time.Duration(left) * time.Microsecond}
	d.ResetAfter = d.NextAfter
	if !d.Allowed {
		d.RetryAfter = d.NextAfter
	}
	if left == 0 {
		d.Remaining = 1
	}
	return s, d
}

func (cooldown) Lua() string {
	return `
local function take(at, a, b, till, now, cost, quota, period)
  if cost < 0 then return 0, now - period, a, 0, now end
  if a ~= 0 and now < at + period then return at + period - now end
  return 0, now, 1, 0, now + period
end`
}

func cooldowns(a quota.Algorithm) []quota.Limit {
	return []quota.Limit{
		{Name: "short", Algorithm: a, Quota: 1, Period: 999 * time.Microsecond},
		{Name: "long", Algorithm: a, Quota: 1, Period: time.Hour},
		algorithms.GCRA(7, time.Hour),
	}
}

func onRedis(t *testing.T) quota.Store {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(10*time.Second, redistest.Server(t).Addr())) // long, because the machine may be busy
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestLimits(t *testing.T) {
	t.Run("memory", func(t *testing.T) { storetest.Limits(t, memstore.New(memstore.Options{}), cooldowns(cooldown{})...) })
	t.Run("Redis", func(t *testing.T) { storetest.Limits(t, onRedis(t), cooldowns(cooldown{})...) })
}

// mistaken is the algorithm cooldown with a mistake in its Lua.
type mistaken struct {
	cooldown
	from, to string
}

func (m mistaken) Name() string { return "cooldown " + m.to }
func (m mistaken) Lua() string  { return strings.Replace(m.cooldown.Lua(), m.from, m.to, 1) }

// TestLimitsFlaws: Limits fails if the Lua of an algorithm differs from its Take.
func TestLimitsFlaws(t *testing.T) {
	store := onRedis(t)
	for _, m := range []mistaken{
		{from: "now < at", to: "now <= at"},
		{from: "return at + period - now", to: "return at + period - now + 1"},
		{from: "now, 1, 0, now + period", to: "now, 2, 0, now + period"},
		{from: "now, 1, 0, now + period", to: "now, 1, 0, now"},
		{from: "now, 1, 0, now + period", to: "now, 0.5, 0, now + period"},
		{from: "0, now - period, a, 0, now", to: "0, 0, 0, 0, 0"},
	} {
		limits := storetest.Test{Name: "Limits", Run: func(t testing.TB, _ quota.Store) { storetest.Limits(t, store, cooldowns(m)...) }}
		found := false
		for attempt := 0; attempt < 10 && !found; attempt++ { // Limits makes random charges, at the speed of the machine
			found = len(failures(t, limits, "")) > 0
		}
		if !found {
			t.Errorf("Limits found no mistake after %q replaced %q in the Lua", m.to, m.from)
		}
	}
}

// TestLimitsPage: docs/extending.md shows the algorithm exactly as it is tested here.
func TestLimitsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/extending.md")
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.ReadFile("limits_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, begin := range []string{"type cooldown struct{}", "func (cooldown) Lua"} {
		_, code, _ := strings.Cut(string(page), "```go\n"+begin)
		code, _, _ = strings.Cut(code, "```")
		if code == "" || !strings.Contains(string(here), begin+code) {
			t.Errorf("the code of the page from %q on differs from the code of this test", begin)
		}
	}
}

func ExampleAlgorithm() {
	_ = func(t *testing.T) { // TestCooldown
		storetest.Algorithm(t,
			quota.Limit{Algorithm: cooldown{}, Quota: 1, Period: time.Microsecond},
			quota.Limit{Algorithm: cooldown{}, Quota: 1, Period: 24 * time.Hour})
	}
	// Output:
}

func ExampleTests() {
	for _, test := range storetest.Tests()[:2] {
		fmt.Println(test.Name)
	}
	// Output:
	// Clock
	// Random
}
