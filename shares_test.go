package weir_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A share is how many units of a limit a group may always use.
type share struct {
	group string
	units int64
}

// shares returns one rule for each set of groups. The groups of a set together use at most what
// the shares of the others leave. A request is charged under the sets that have its group.
func shares(group weir.KeyFunc, limit func(units int64) weir.Limit, total int64, all ...share) (rules []weir.Rule) {
	for set := 1; set < 1<<len(all); set++ {
		left, names := total, []string{}
		for i, s := range all {
			if set&(1<<i) == 0 {
				left -= s.units
			} else {
				names = append(names, s.group)
			}
		}
		rules = append(rules, weir.Rule{
			Name: strings.Join(names, "+"),
			Key: func(r *http.Request) (string, bool) {
				g, ok := group(r)
				for _, name := range names {
					if ok && g == name {
						return "all", true
					}
				}
				return "", false
			},
			Limits: []weir.Limit{limit(left)},
		})
	}
	return rules
}

// shared is a limit of which groups have shares.
type shared struct {
	limiter *weir.Limiter
	store   weir.Store
	total   int64
	shares  []share
	done    [][]func()    // for a concurrency limit
	times   [][]int64     // when each group got a unit, in µs
	own     []quota.Limit // for a meter: the share as a limit
}

func newShared(t *testing.T, r *rand.Rand, limit func(int64) weir.Limit) *shared {
	s := &shared{store: memstore.New(memstore.Options{})}
	for i := range 2 + r.IntN(3) {
		s.shares = append(s.shares, share{string(rune('a' + i)), int64(1 + r.IntN(4))})
		s.total += s.shares[i].units
		s.own = append(s.own, limit(s.shares[i].units))
	}
	s.total += int64(r.IntN(5)) // what the groups lend to each other
	s.done, s.times = make([][]func(), len(s.shares)), make([][]int64, len(s.shares))
	s.limiter = must(t, s.store, weir.Options{Rules: shares(weir.ByHeader("Group"), limit, s.total, s.shares...)})
	return s
}

// ask reports whether a request of the group i is admitted.
func (s *shared) ask(i int) bool {
	a, err := s.limiter.Admit(ask("/", "", "Group", s.shares[i].group))
	if err != nil {
		return false
	}
	s.done[i] = append(s.done[i], func() { a.Done(weir.Outcome{}) })
	s.times[i] = append(s.times[i], a.At.UnixMicro())
	return true
}

// used returns how many units a group uses: those in flight, or those of the window that begins
// after since.
func (s *shared) used(i int, since int64) (n int64) {
	for _, at := range s.times[i] {
		if at > since {
			n++
		}
	}
	return n
}

// TestShares: whatever the groups do, all together never use more than the limit, and no group is
// refused while it uses less than its share. A group that is alone gets what the shares of the
// others leave. This holds for concurrency limits, fixed windows, sliding logs and, if the share is
// a limit of its own, for GCRA and the buckets.
func TestShares(t *testing.T) {
	const period = time.Second
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 16))
	for name, limit := range map[string]func(int64) weir.Limit{
		"in flight":    func(n int64) weir.Limit { return algorithms.InFlight(n, time.Hour) },
		"fixed window": func(n int64) weir.Limit { return algorithms.FixedWindow(n, period) },
		"sliding log":  func(n int64) weir.Limit { return algorithms.SlidingLog(n, period) },
		"gcra":         func(n int64) weir.Limit { return algorithms.GCRA(n, period) },
		"token bucket": func(n int64) weir.Limit { return algorithms.TokenBucket(n, n, period) },
	} {
		for n := range rounds.N(60, 1000) {
			synctest.Test(t, func(t *testing.T) {
				s := newShared(t, r, limit)
				own := memstore.New(memstore.Options{})
				for range 150 {
					now := time.Now().UnixMicro()
					i, sum := r.IntN(len(s.shares)), int64(0)
					used, below := int64(0), false
					switch name {
					case "in flight":
						used = int64(len(s.done[i]))
						for g := range s.shares {
							sum += int64(len(s.done[g]))
						}
					default:
						since := now - period.Microseconds()
						if name == "fixed window" {
							since = now - now%period.Microseconds() - 1
						}
						used = s.used(i, since)
						for g := range s.shares {
							sum += s.used(g, since)
						}
					}
					below = used < s.shares[i].units
					meter := name == "gcra" || name == "token bucket"
					charge := quota.Charge{Rule: "own", Key: fmt.Sprint(i), Limit: s.own[i], Cost: 1}
					if meter { // the group is below its share if the share would admit the request
						peek, err := quota.Peek(t.Context(), own, charge)
						if err != nil {
							t.Fatal(err)
						}
						below = peek.Allowed()
					}
					admitted := s.ask(i)
					if admitted && meter {
						if err := own.Take(t.Context(), &quota.Transaction{Mode: quota.ModeForce, Charges: []quota.Charge{charge}}); err != nil {
							t.Fatal(err)
						}
					}
					if below && !admitted {
						t.Fatalf("%s, seed %d, round %d: group %d was refused below its share: %d used of %v, total %d", name, seed, n, i, used, s.shares, s.total)
					}
					if admitted && !meter && sum >= s.total {
						t.Fatalf("%s, seed %d, round %d: %d used, want at most %d", name, seed, n, sum+1, s.total)
					}
					switch r.IntN(3) {
					case 0:
						time.Sleep(time.Duration(r.Int64N(int64(period) / 5)).Truncate(time.Microsecond))
					case 1:
						if k := r.IntN(len(s.done)); len(s.done[k]) > 0 {
							s.done[k][0]()
							s.done[k] = s.done[k][1:]
						}
					}
				}
				for _, all := range s.done {
					for _, done := range all {
						done()
					}
				}
				time.Sleep(2 * period)
				alone, most := int64(0), s.total
				for s.ask(0) {
					alone++
				}
				for _, other := range s.shares[1:] {
					most -= other.units
				}
				if alone != most {
					t.Errorf("%s: a group alone got %d units, want %d", name, alone, most)
				}
				for _, done := range s.done[0][len(s.done[0])-int(alone):] {
					done()
				}
			})
		}
	}
}

// TestSharesOfMany: with a limiter of the shares, and one of what they leave, no group is refused
// while it uses less than its share either, and all together never use more than the limit.
func TestSharesOfMany(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 17))
	const groups, each, rest = 20, 3, 10
	store, most := memstore.New(memstore.Options{}), int64(0)
	own := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "own", Key: weir.ByHeader("Group"), Limits: []weir.Limit{algorithms.InFlight(each, time.Hour)}}}})
	pool := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "rest", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(rest, time.Hour)}}}})
	var done [groups][]*weir.Admission
	for n := range rounds.N(20_000, 1_000_000) {
		i, sum := r.IntN(groups), int64(0)
		if r.IntN(2) == 0 {
			i = r.IntN(3) // few groups ask for more than their share
		}
		for g := range done {
			sum += int64(len(done[g]))
		}
		if k := len(done[i]); k > 0 && r.IntN(5) < 2 {
			j := r.IntN(k)
			done[i][j].Done(weir.Outcome{})
			done[i] = append(done[i][:j], done[i][j+1:]...)
			continue
		}
		req := ask("/", "", "Group", fmt.Sprint(i))
		a, err := own.Admit(req)
		if err != nil {
			a, err = pool.Admit(req)
		}
		if err != nil {
			if len(done[i]) < each {
				t.Fatalf("seed %d, round %d: group %d was refused with %d of %d units", seed, n, i, len(done[i]), each)
			}
			continue
		}
		done[i] = append(done[i], a)
		if most = max(most, sum+1); most > groups*each+rest {
			t.Fatalf("seed %d, round %d: %d in flight, want at most %d", seed, n, most, groups*each+rest)
		}
	}
	for g := range done {
		for _, a := range done[g] {
			a.Done(weir.Outcome{})
		}
	}
}
