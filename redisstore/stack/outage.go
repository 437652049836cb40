package stack

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
)

// An outageLog writes the log lines about Redis: one when an outage begins, and one when it ends.
// The line is the same whether a check, a breaker or a fallback is the first to detect the outage.
// If Redis cannot be used until its setup is changed, the line is repeated every minute.
type outageLog struct {
	logger *slog.Logger
	effect func() string // describes what an outage means for the limits
	open   func() bool   // whether the breaker is open, perhaps for one of several servers; nil without one

	mu     sync.Mutex
	began  time.Time   // zero if there is no outage
	slow   time.Time   // when Redis was first found to be too slow; zero if Redis is not too slow
	logged bool        // a line about the outage was logged
	writes bool        // Redis refuses writes, so only a check can end the outage: see refusesWrites
	again  time.Time   // when the next line about a slow Redis may be logged: see slowAgain
	loud   sparse.Gate // limits the lines that are repeated every minute

	foreign sparse.Gate // limits the lines about values of other programs, which are no outage
}

// slowAgain is the minimum time between two lines about a slow Redis, or about values of other
// programs. The former needs it if only one of several masters is too slow and this master receives
// few requests. Each of these requests then begins an outage, which ends with requests to other
// masters.
const slowAgain = 10 * time.Minute

// A reply describes an error reply that explains why Redis cannot make decisions.
type reply struct {
	advice string
	writes bool // Redis refuses writes
}

// foreign is the advice for a value that the store cannot read.
const foreign = "delete the key, and give the program that wrote it another prefix"

// replies maps codes, and the text of an error about a damaged value, to replies.
var replies = map[string]reply{
	"READONLY":   {"use the address of the master: this server is a replica", true},
	"OOM":        {"give Redis more memory, or set maxmemory-policy to volatile-lfu", true},
	"MISCONF":    {"make Redis able to save its data: its log says why it cannot", true},
	"NOREPLICAS": {"start the replicas that min-replicas-to-write requires", true},
	"LOADING":    {"wait until Redis has loaded its data", false},
	"BUSY":       {"end the script that blocks Redis: SCRIPT KILL", false},
	"WRONGTYPE":  {foreign, false},

	"its state in Redis can't be read": {foreign, false},
	"max number of clients reached":    {"raise maxclients of Redis, or close connections of other programs", false},
}

// The expression code finds the code of an error reply, which Redis before 7.0 puts in the middle
// of the text.
var code = regexp.MustCompile(`\b(` + strings.Join(slices.Sorted(maps.Keys(replies)), "|") + `)(?:[ ,:]|$)`)

// replyOf returns the description of the error reply err, or of the error of a closed client, or
// the zero value.
func replyOf(err error) reply {
	if errors.Is(err, redis.ErrClosed) {
		return reply{"close the Redis client only after the servers that use the store", false}
	}
	return replies[strings.TrimRight(code.FindString(err.Error()), " ,:")]
}

// refusesWrites reports whether Redis has answered that it refuses writes. Redis then still answers
// calls that change nothing, such as health checks, so the success of such a call does not end the
// outage.
func refusesWrites(err error) bool { return replyOf(err).writes }

// isForeign reports whether err is about a value that another program has probably written.
func isForeign(err error) bool { return replyOf(err).advice == foreign }

// begin records that Redis has failed.
func (o *outageLog) begin(err error) {
	if isForeign(err) && !errors.Is(err, quota.ErrUnusable) {
		if _, ok := o.foreign.Pass(); ok {
			o.logger.Warn("stack: value in Redis of another program", "err", err, "effect", "its key is counted in memory; calls without a fallback fail", "fix", foreign)
		}
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes = o.writes || refusesWrites(err)
	begins := o.began.IsZero()
	if begins {
		o.began = time.Now()
	}
	if errors.Is(err, quota.ErrUnusable) {
		if _, ok := o.loud.Pass(); ok {
			o.logged = true
			o.logger.Error("stack: setup of Redis unusable until it is changed", "err", err, "effect", o.effect())
		}
		return
	}
	if errors.Is(err, quota.ErrSlow) {
		if o.slow.IsZero() {
			o.slow = time.Now()
		}
		if o.slow.After(o.again) {
			o.logged, o.again = true, o.slow.Add(slowAgain)
			o.logger.Warn("stack: timeout too short for this Redis", "err", err, "effect", o.effect(),
				"fix", "raise redisstore.Options.Timeout (-redis-timeout), or bring Redis nearer")
		}
		return
	}
	if !begins && !o.slow.IsZero() { // Redis may have been slow before it failed
		_, begins = o.loud.Pass()
	}
	if begins {
		o.logged = true
		text, advice := "stack: outage of Redis began", cmp.Or(replyOf(err).advice, "check that Redis runs and that this process can reach it")
		if errors.Is(err, quota.ErrBusy) {
			text, advice = "stack: overload of Redis or this process began", "lower the load, or add processors; if other code uses the Redis client, give the store a separate client"
		}
		o.logger.Warn(text, "err", err, "cause", quota.Cause(err), "effect", o.effect(), "advice", advice)
	}
}

// ongoing reports whether an outage has begun and not ended.
func (o *outageLog) ongoing() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.began.IsZero()
}

// end records that Redis has answered a request, unless Redis may still refuse writes.
func (o *outageLog) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.writes {
		o.over()
		o.loud.Reset()
	}
}

// recordPassed records that Redis has passed a check, which includes writes.
func (o *outageLog) recordPassed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over()
}

func (o *outageLog) over() {
	if o.logged {
		o.logger.Info("stack: use of Redis continues", "after", period.Rounded(time.Since(o.began)))
	}
	o.began, o.slow, o.logged, o.writes = time.Time{}, time.Time{}, false, false
}

// fallback returns a fallback that does not log outages itself, because o logs them.
func (o *outageLog) fallback(primary, memory quota.Store) *quota.FallbackStore {
	return quota.Fallback(primary, memory, quota.FallbackOptions{
		Logger: slog.New(slog.DiscardHandler),
		OnChange: func(active bool, err error) {
			if active {
				o.begin(err)
			} else if o.open == nil || !o.open() { // otherwise one of several servers is still down
				o.end()
			}
		},
	})
}

// breaker returns a breaker around the store redis, whose outages o logs. The breaker itself logs
// outages only if its options have a Logger.
func (o *outageLog) breaker(redis quota.Store, b quota.BreakerOptions) *quota.BreakerStore {
	b.Logger = cmp.Or(b.Logger, slog.New(slog.DiscardHandler))
	user := b.OnChange
	b.OnChange = func(open bool, err error) {
		if open {
			o.begin(err)
		} else {
			o.end()
		}
		if user != nil {
			user(open, err)
		}
	}
	breaker := quota.Breaker(redis, b)
	o.open = func() bool { return breaker.Stats().Open }
	return breaker
}
