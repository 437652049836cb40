package redisstore

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// probeTimeout is the maximum duration of a Probe. No request waits for a Probe.
const probeTimeout = 5 * time.Second

//go:embed probe.lua
var probeLua string

// Probe checks whether Redis is suitable for the store; call it before the first request arrives.
// Probe connects to Redis and uses each command that the store and its overrides need. It also
// evaluates a few charges with the algorithm of each limit, and compares Redis's decisions with
// those of the Go code. In a cluster, Probe checks each master. The keys that it uses have the
// store's prefix and are not used for anything else. Probe deletes them afterwards.
//
// Probe returns nil if every check passes. An error that wraps quota.ErrUnusable means that Redis
// is misconfigured or not supported, and names everything that is wrong or missing. Any other
// error means that Probe could not complete its checks, for example because Redis is down. Probe
// takes at most 5 s.
func (s *Store) Probe(ctx context.Context, limits ...quota.Limit) error {
	budget := queue.WithBudget(ctx, probeTimeout)
	keys, err := s.keyOfEachNode(budget)
	if err != nil {
		return s.timeoutCause(ctx, err)
	}
	var wrong []string
	for _, key := range keys {
		err := s.probe(budget, key, limits)
		if err != nil {
			err = s.timeoutCause(ctx, err)
		}
		switch u := (*unusable)(nil); {
		case errors.As(err, &u):
			if text := strings.TrimPrefix(u.Error(), "redisstore: "); !slices.Contains(wrong, text) {
				wrong = append(wrong, text)
			}
		case err != nil && wrong == nil:
			return err
		}
	}
	if wrong != nil {
		return &unusable{strings.Join(wrong, "; "), nil}
	}
	return nil
}

// keyOfEachNode returns a key on each master. It tries random keys, so it may miss a master that
// has very few slots.
func (s *Store) keyOfEachNode(ctx context.Context) (keys []string, err error) {
	if s.queue != nil {
		return []string{rand.Text()}, nil
	}
	seen := map[*redis.Client]bool{}
	for range 1000 {
		key := rand.Text()
		node, err := s.node(ctx, s.probeKey(key))
		if err != nil {
			return nil, err
		}
		if !seen[node] {
			seen[node] = true
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// probeKey returns the name of a value that only Probe uses. The name of any value with states has
// a colon before the brace.
func (s *Store) probeKey(key string) string { return s.prefix + "probe{." + key + "}" }

// probe is like Probe, but only for the node that has a key.
func (s *Store) probe(ctx context.Context, key string, limits []quota.Limit) error {
	lua, err := s.tryCommands(ctx, key)
	if err != nil {
		return err
	}
	for _, l := range limits {
		err := s.selfTest(ctx, []quota.Charge{{Key: key, Limit: l}})
		switch {
		case err == nil:
			continue
		case !undecided(err) || s.misconfigured(err) != "":
			return err
		case lua != "Lua 5.1" && lua != "Lua 5.4":
			what := "the server runs " + lua + ", and the scripts need Lua 5.1 or 5.4: " + l.Algorithm.Name()
			return &unusable{what, cannotRun(err)}
		}
		return &unusable{l.Algorithm.Name(), cannotRun(err)}
	}
	return nil
}

// tryCommands calls each command that the store needs, and returns the version of Lua.
func (s *Store) tryCommands(ctx context.Context, key string) (lua string, err error) {
	text := fmt.Sprintf("%slocal calls_time = %v\n%s", s.scripts.first, s.clock == nil, probeLua)
	name, script := s.probeKey(key), redis.NewScript(text)
	var reply []string
	for _, args := range [][]any{{"eval", text}, {"evalsha", script.Hash()}} {
		cmd := queue.NewCmd(ctx, append(args, 1, name, "")...)
		if err := s.process(ctx, name, []queue.Cmd{cmd}); err != nil {
			return "", err
		}
		if reply, err = cmd.StringSlice(); err != nil {
			return "", err
		}
	}
	return s.readProbe(reply)
}

// readProbe reads the reply of probe.lua.
func (s *Store) readProbe(reply []string) (lua string, err error) {
	if len(reply)%2 == 0 {
		return "", errors.New("redisstore: the reply of the probe can't be read")
	}
	var lacks, wrong []string
	for i := 1; i+1 < len(reply); i += 2 {
		what := s.meaning(reply[i+1], reply[i])
		right, lacking := strings.CutPrefix(what, s.user()+" lacks +")
		switch {
		case what == "":
			return "", errors.New("redisstore: Redis answers: " + reply[i+1])
		case lacking:
			lacks = append(lacks, "+"+right)
		case !slices.Contains(wrong, what):
			wrong = append(wrong, what)
		}
	}
	if lacks != nil {
		wrong = append(wrong, s.user()+" lacks "+strings.Join(lacks, " "))
	}
	if wrong != nil {
		return "", &unusable{strings.Join(wrong, "; "), nil}
	}
	return reply[0], nil
}
