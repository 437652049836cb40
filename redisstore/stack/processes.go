package stack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/quota"
)

const (
	countEvery   = 2 * time.Second  // how often a process reports that it is running, without Options.Replicas
	compareEvery = 10 * time.Second // how often it compares the limits of its rules with those of others
	fallAfter    = 10 * time.Second // how long there must be fewer processes until this counts
	differsAfter = 5                // after so many comparisons in a row, different limits are not taken for a rollout
	mostRules    = 1000             // more are not compared
)

// processes keeps track of the other processes. It has a timer and no goroutine. It is also the
// store that counts in memory while Redis is down.
type processes struct {
	count   func(ctx context.Context, id string) (int, error)
	compare func(ctx context.Context, id string, limits map[string]string) (map[string][]string, error)
	id      string
	given   int // Options.Replicas
	memory  quota.Store
	logger  *slog.Logger
	ctx     context.Context // ends with Close
	share   atomic.Pointer[share]

	calling sync.Mutex // held while Redis is called
	timer   *time.Timer
	most    int // processes since then
	since   time.Time

	mu       sync.Mutex
	compared time.Time
	limits   map[string]string  // by rule
	others   map[string]*differ // what other processes do, by rule; "" has the rules of other services
}

// A share is a store that enforces this process's share of each limit. If n is 0, the number of
// processes is unknown, and the store enforces each limit as a whole.
type share struct {
	quota.Store
	n int
}

type differ struct {
	text  string
	times int // in how many comparisons in a row
}

// start begins to call Redis.
func (p *processes) start(ctx context.Context, logger *slog.Logger) {
	p.ctx, p.logger, p.id = ctx, logger, rand.Text()
	p.limits, p.others = map[string]string{}, map[string]*differ{}
	p.divide(p.given)
	p.calling.Lock() // until the timer is set
	defer p.calling.Unlock()
	p.timer = time.AfterFunc(0, p.beat)
}

// stop ends the calls to Redis. The context must have ended.
func (p *processes) stop() {
	p.calling.Lock()
	defer p.calling.Unlock()
	p.timer.Stop()
}

func (p *processes) divide(n int) {
	p.share.Store(&share{quota.Share(p.memory, max(1, n)), n})
}

// Take implements quota.Store.
func (p *processes) Take(ctx context.Context, t *quota.Transaction) error {
	return p.share.Load().Take(ctx, t)
}

// effect is what an outage means for limits, for each of the stores that a Store returns.
func (p *processes) effect() string {
	part := "each limit as a whole"
	switch n := p.share.Load().n; n {
	case 0:
		part += ", because it does not know how many processes there are"
	case 1:
	default:
		part = fmt.Sprintf("1/%d of each limit; with Undivided, each limit as a whole", n)
	}
	return "counting in memory: each process enforces " + part + "; with WithoutFallback, OnError decides"
}

// beat reports to Redis that the process is running, and what the limits of its rules are.
func (p *processes) beat() {
	p.calling.Lock()
	defer p.calling.Unlock()
	if p.given == 0 {
		n, err := p.count(p.ctx, p.id)
		if errors.Is(err, redis.ErrClosed) {
			return
		}
		p.counted(n, err, time.Now())
	}
	p.compareLimits()
	if p.ctx.Err() == nil {
		p.timer.Reset(countEvery)
	}
}

// counted notes how many processes there are. A larger number counts at once. A smaller one counts
// only if there was no larger one for fallAfter, because Redis may have lost its data, and some
// processes may not have reported since then.
func (p *processes) counted(n int, err error, now time.Time) {
	known := p.share.Load().n
	if p.most = max(p.most, n); err == nil && p.most < known && now.Sub(p.since) < fallAfter {
		return
	}
	if err == nil && p.most != known {
		p.divide(p.most)
	}
	p.most, p.since = 0, now
}

// compareLimits compares the limits of this process with those of other processes, and logs
// differences.
func (p *processes) compareLimits() {
	p.mu.Lock()
	limits, now := maps.Clone(p.limits), time.Now()
	due := len(limits) > 0 && (p.compared.IsZero() || now.Sub(p.compared) >= compareEvery)
	p.mu.Unlock()
	if !due {
		return
	}
	names := slices.Sorted(maps.Keys(limits))
	limits[""] = strings.Join(names, "\n") // a name of a rule has no line end
	found, err := p.compare(p.ctx, p.id, limits)
	if err != nil {
		return
	}
	found[""] = slices.DeleteFunc(found[""], func(theirs string) bool {
		return slices.ContainsFunc(strings.Split(theirs, "\n"), func(name string) bool { return limits[name] != "" })
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compared = now
	for rule, d := range p.others {
		if !slices.Contains(found[rule], d.text) {
			delete(p.others, rule)
		}
	}
	for rule, texts := range found {
		if len(texts) == 0 {
			continue
		}
		d := p.others[rule]
		if d == nil {
			d = &differ{text: texts[0]}
			p.others[rule] = d
		}
		if d.times++; d.times == differsAfter {
			p.warn(rule, d.text)
		}
	}
}

// warn logs that another process has other limits for a rule or, if rule is "", that it has other
// rules.
func (p *processes) warn(rule, text string) {
	switch {
	case rule != "":
		p.logger.Warn("stack: limits of a rule differ in another process", "rule", rule, "limits", p.limits[rule], "other_limits", text,
			"effect", "limits of one name, period and algorithm share their counts, and others count alone",
			"fix", "give both the same limits, or other names to their rules, or give each its own prefix; in a rollout, wait")
	case p.given == 0:
		p.logger.Warn("stack: prefix shared with processes of other rules", "other_rule", strings.ReplaceAll(text, "\n", ", "),
			"effect", "while Redis is down, limits are divided by the number of these processes too", "fix", "give each service its own prefix, or set Replicas")
	}
}

// Announce implements optional.Announcer.
func (s *Store) Announce(rule string, limits []quota.Limit) {
	s.checker.processes.announce(rule, limits)
}

// Announce implements optional.Announcer.
func (p primary) Announce(rule string, limits []quota.Limit) {
	p.checker.processes.announce(rule, limits)
}

func (p *processes) announce(rule string, limits []quota.Limit) {
	var texts []string
	for _, l := range limits {
		if l.Name = l.StoredName(); l.Burst == l.Quota {
			l.Burst = 0
		}
		texts = append(texts, l.String())
	}
	slices.Sort(texts)
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.limits, rule); texts != nil && len(p.limits) < mostRules {
		p.limits[rule] = strings.Join(texts, ", ")
	}
	p.compared = time.Time{} // now
}

// Conflicts describes each rule for which another process has had other limits for at least 40 s,
// so that a rollout is probably not the reason. It makes no network call. Limits from a Policy and
// overrides may differ, so they are not compared.
func (s *Store) Conflicts() []string {
	p := &s.checker.processes
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []string
	for rule, d := range p.others {
		if rule != "" && d.times >= differsAfter {
			found = append(found, fmt.Sprintf("%s: %s here, %s in another process", rule, p.limits[rule], d.text))
		}
	}
	slices.Sort(found)
	return found
}

// Replicas returns the number of processes among which s would divide the limits in an outage that
// began now: Options.Replicas or, if that is 0, the number that s has counted. It returns 0 if s
// has not counted yet.
func (s *Store) Replicas() int { return s.checker.processes.share.Load().n }
