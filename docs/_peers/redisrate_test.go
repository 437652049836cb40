package peers

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// allow refuses what either refuses. redis_rate comes first, so that Weir charges only what is sent.
func allow(ctx context.Context, old *redis_rate.Limiter, store quota.Store, key string) (bool, error) {
	res, err := old.Allow(ctx, key, redis_rate.PerMinute(100))
	if err != nil || res.Allowed == 0 {
		return false, err
	}
	d, err := quota.Allow(ctx, store, quota.Charge{Rule: "api", Key: key, Limit: algorithms.GCRA(100, time.Minute), Cost: 1})
	return d.Allowed, err
}

// TestRedisRate: what docs/migration.md says of a switch from redis_rate. Counts start at zero; with
// allow, none is lost.
func TestRedisRate(t *testing.T) {
	page, err := os.ReadFile("../migration.md")
	if err != nil {
		t.Fatal(err)
	}
	source, _ := os.ReadFile("redisrate_test.go")
	_, code, _ := strings.Cut(string(source), "// allow refuses")
	code, _, _ = strings.Cut(code, "\n}\n")
	if !strings.Contains(string(page), "```go\n// allow refuses"+code+"\n}\n```") {
		t.Error("the page has another function allow")
	}

	ctx := context.Background()
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, redistest.Server(t).Addr()))
	defer rdb.Close()
	old := redis_rate.NewLimiter(rdb)
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// few refill within the test, so an hour is as good as a minute
	limit, theirs := algorithms.GCRA(100, time.Hour), redis_rate.PerHour(100)
	ours := func(key string) (bool, error) {
		d, err := quota.Allow(ctx, store, quota.Charge{Rule: "api", Key: key, Limit: limit, Cost: 1})
		return d.Allowed, err
	}
	rate := func(key string) (bool, error) {
		res, err := old.Allow(ctx, key, theirs)
		return err == nil && res.Allowed > 0, err
	}
	count := func(key string, allow func(string) (bool, error)) (n int) {
		t.Helper()
		for range 150 {
			ok, err := allow(key)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				n++
			}
		}
		return n
	}
	if before, after := count("acme", rate), count("acme", ours); before != 100 || after != 100 {
		t.Errorf("plain switch: got %d before and %d after, want 100 and 100", before, after)
	}
	keys, err := rdb.Keys(ctx, "*acme*").Result()
	if slices.Sort(keys); err != nil || !slices.Equal(keys, []string{"rate:acme", "weir:api:{.acme}"}) {
		t.Errorf("got keys %q, %v", keys, err)
	}
	if ttl := rdb.TTL(ctx, "rate:acme").Val(); ttl <= 0 || ttl > time.Hour+time.Second {
		t.Errorf("rate:acme expires after %v, want an hour and a second at most", ttl)
	}
	both := func(key string) (bool, error) {
		if ok, err := rate(key); !ok {
			return false, err
		}
		return ours(key)
	}
	if before, after := count("beta", both), count("beta", ours); before != 100 || after != 0 {
		t.Errorf("both and then Weir: got %d before and %d after, want 100 and 0", before, after)
	}
	if ok, err := allow(ctx, old, store, "gamma"); !ok || err != nil {
		t.Errorf("allow: got %v, %v", ok, err)
	}
	if ok, err := allow(ctx, old, store, "beta"); ok || err != nil { // the state of redis_rate means the same under another period
		t.Errorf("allow of a key that redis_rate refuses: got %v, %v", ok, err)
	}

	allowed, err := old.Allow(ctx, "delta", theirs)
	if err != nil || allowed.RetryAfter != -1 {
		t.Errorf("redis_rate, allowed: got RetryAfter %v, %v, want -1", allowed.RetryAfter, err)
	}
	never, err := old.AllowN(ctx, "delta", theirs, 101)
	if err != nil || never.Allowed != 0 || never.RetryAfter <= 0 {
		t.Errorf("redis_rate, 101 of 100: got %d allowed, RetryAfter %v, %v, want 0 and a wait", never.Allowed, never.RetryAfter, err)
	}
	d, err := quota.Allow(ctx, store, quota.Charge{Rule: "api", Key: "delta", Limit: limit, Cost: 101})
	if err != nil || d.Allowed || d.RetryAfter != quota.Never {
		t.Errorf("weir, 101 of 100: got %+v, %v, want Never", d, err)
	}
}

// TestVersions: the table of the page names the versions of go.mod.
func TestVersions(t *testing.T) {
	page, _ := os.ReadFile("../migration.md")
	mod, _ := os.ReadFile("go.mod")
	for _, m := range []struct{ name, module string }{
		{"httprate", "go-chi/httprate"}, {"ulule/limiter", "ulule/limiter/v3"}, {"tollbooth", "didip/tollbooth/v7"},
		{"throttled", "throttled/throttled/v2"}, {"redis_rate", "go-redis/redis_rate/v10"},
	} {
		v := regexp.MustCompile(m.module + ` v(\d+\.\d+)\.`).FindSubmatch(mod)
		if v == nil || !strings.Contains(string(page), "| "+m.name+" "+string(v[1])+" |") {
			t.Errorf("%s: go.mod has %q, which the page does not", m.name, v)
		}
	}
}
