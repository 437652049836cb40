package stack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

const (
	countEvery   = 2 * time.Second  // how often a process reports that it is running
	compareEvery = 10 * time.Second // how often a process compares its rules' limits with those of other processes
	fallAfter    = 10 * time.Second // a smaller number of processes is used only after this time without a larger one
	differsAfter = 40 * time.Second // limits that differ for this long probably do not differ because of a rollout
	mostRules    = 1000             // the maximum number of rules that are compared
)

// A processes value keeps track of the other processes, by a timer instead of a goroutine. It is
// also the store that counts in memory while Redis is down.
type processes struct {
	heartbeat func(ctx context.Context, id, group string) (*redisstore.Heartbeat, error)
	compare   func(ctx context.Context, id string, texts map[string]string) (map[string][]string, error)
	id        string
	given     int               // Options.Replicas
	agree     map[string]string // Options.Agree
	memory    quota.Store
	logger    *slog.Logger
	ctx       context.Context // canceled by Close
	share     atomic.Pointer[share]
	losses    lossDetector
	outage    func() bool // whether the log already says that Redis fails

	calling sync.Mutex // held while Redis is called
	refused int        // how many reports in a row Redis has answered with an error
	timer   *time.Timer
	most    int // the largest number of processes since the time in the field since
	since   time.Time

	mu       sync.Mutex
	compared time.Time
	limits   map[string]string  // the limits of each rule; "" if they come from a Policy
	foreign  map[string]bool    // groups of processes that have no rule in common with this process
	others   map[string]*differ // the differences from other processes, by rule or setting
}

// A share is a store that enforces this process's share of each limit. The share is 1/n. If n is 0,
// the number of processes is unknown, and the store enforces the whole limit.
type share struct {
	quota.Store
	n int
}

type differ struct {
	text   string
	since  time.Time
	logged bool
}

// start starts the timer that calls Redis.
func (p *processes) start(ctx context.Context, logger *slog.Logger) {
	p.ctx, p.logger, p.id = ctx, logger, rand.Text()
	p.limits, p.others = map[string]string{}, map[string]*differ{}
	p.divide(p.given)
	p.calling.Lock() // until the timer is set
	defer p.calling.Unlock()
	p.timer = time.AfterFunc(0, p.beat)
}

// stop stops the timer. The context must have been canceled.
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

// effect describes what an outage means for limits, with and without a fallback.
func (p *processes) effect() string {
	part := "each limit as a whole"
	switch n := p.share.Load().n; n {
	case 0:
		part += ", because it does not know how many processes there are"
	case 1:
	default:
		part = fmt.Sprintf("1/%d of each limit", n)
	}
	return "counting in memory: each process enforces " + part + "; calls without a fallback fail"
}

// Stats returns how often Redis has lost counts, and how many keys it has evicted. Packages
// weirprom and weirotel call Stats.
func (p *processes) Stats() quota.LossStats { return p.losses.stats() }

// beat reports to Redis that the process is running, and reports the limits of its rules.
func (p *processes) beat() {
	p.calling.Lock()
	defer p.calling.Unlock()
	h, err := p.heartbeat(p.ctx, p.id, p.group())
	if errors.Is(err, redis.ErrClosed) {
		return
	}
	n := 0
	if err == nil {
		p.losses.check(h, p.logger)
		n = h.Processes - p.foreigners(h.Groups)
	} else if isForeign(err) { // to delete what another program wrote is no loss of counts
		p.losses.last = nil
	}
	if p.given == 0 {
		p.counted(n, err, time.Now())
	}
	p.answered(cmp.Or(err, p.compareAll()))
	if p.ctx.Err() == nil {
		p.timer.Reset(countEvery)
	}
}

// answered logs one line if Redis refuses the reports of this process although it evaluates
// requests, because another program uses the keys or the user lost a permission.
func (p *processes) answered(err error) {
	if err == nil || !errors.Is(err, quota.ErrUnusable) && !isForeign(err) || p.outage() {
		p.refused = 0 // other errors end by themselves
	} else if p.refused++; p.refused == 3 {
		p.logger.Warn("stack: processes not counted in Redis", "err", err,
			"effect", "in an outage, shares of limits may be wrong; lost counts, evictions and limits that differ are not noticed",
			"fix", "delete the key, which another program wrote, or give the Redis user the permission")
	}
}

// rules returns the names of the rules, one per line.
func (p *processes) rules() string { // a rule's name contains no line end
	return strings.Join(slices.Sorted(maps.Keys(p.limits)), "\n")
}

// The constant uncounted is the group of processes that have Options.Replicas set.
const uncounted = "-"

// group returns the group of this process.
func (p *processes) group() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.given > 0 {
		return uncounted
	}
	return groupOf(p.rules())
}

// groupOf returns the group of processes that have exactly the given rules, or "" if there are
// none.
func groupOf(rules string) string {
	if rules == "" {
		return ""
	}
	sum := fnv.New64a()
	io.WriteString(sum, rules)
	return strconv.FormatUint(sum.Sum64(), 36)
}

// foreigners returns how many processes get no share of this process's limits, because they have no
// rule in common with this process, or have Options.Replicas set. Processes whose rules are unknown
// are not included.
func (p *processes) foreigners(groups map[string]int) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for group, of := range groups {
		if group == uncounted || p.foreign[group] {
			n += of
		}
	}
	return n
}

// counted records how many processes there are. A larger number is used immediately. A smaller
// number is used only if there was no larger one for fallAfter, because some processes may not have
// reported since Redis lost its data.
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

// The names of settings get the prefix aSetting when they are compared together with the limits of
// rules. No rule has a name with this prefix.
const aSetting = "\n"

// texts returns what this process compares with other processes: its limits by rule, its settings
// and, under the name "", its rules.
func (p *processes) texts() map[string]string {
	texts := map[string]string{}
	for rule, limits := range p.limits {
		if limits != "" {
			texts[rule] = limits
		}
	}
	if len(p.limits) > 0 {
		texts[""] = p.rules()
	}
	for name, text := range p.agree {
		texts[aSetting+name] = text
	}
	return texts
}

// compareAll compares the limits and settings of this process with those of other processes, and
// logs differences.
func (p *processes) compareAll() error {
	p.mu.Lock()
	texts, now := p.texts(), time.Now()
	due := len(texts) > 0 && (p.compared.IsZero() || now.Sub(p.compared) >= compareEvery)
	p.mu.Unlock()
	if !due {
		return nil
	}
	found, err := p.compare(p.ctx, p.id, texts)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compared, p.foreign = now, map[string]bool{}
	for _, theirs := range found[""] {
		if !slices.ContainsFunc(strings.Split(theirs, "\n"), func(rule string) bool { _, ours := p.limits[rule]; return ours }) {
			p.foreign[groupOf(theirs)] = true
		}
	}
	delete(found, "")
	for name, d := range p.others {
		if !slices.Contains(found[name], d.text) {
			delete(p.others, name)
		}
	}
	for name, theirs := range found {
		d := p.others[name]
		if d == nil {
			d = &differ{text: theirs[0], since: now}
			p.others[name] = d
		}
		if !d.logged && now.Sub(d.since) >= differsAfter {
			d.logged = true
			p.warn(name, d.text)
		}
	}
	return nil
}

// warn logs that another process has different limits for a rule, or a different text for a
// setting.
func (p *processes) warn(name, text string) {
	if setting, ok := strings.CutPrefix(name, aSetting); ok {
		p.logger.Warn("stack: setting differs in another process", "text", setting,
			"effect", "what depends on it, such as hashed keys and ids, means nothing to the other process",
			"fix", "give all processes that share the prefix the same value; in a rollout, wait")
		return
	}
	p.logger.Warn("stack: limits of a rule differ in another process", "rule", name, "limits", p.limits[name], "other_limits", text,
		"effect", "limits of one name, period and algorithm share their counts, and others count alone",
		"fix", "give both the same limits, or other names to their rules, or give each its own prefix; in a rollout, wait")
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
	if _, known := p.limits[rule]; known || len(p.limits) < mostRules {
		p.limits[rule] = strings.Join(texts, ", ")
	}
	p.compared, p.foreign = time.Time{}, nil // compare as soon as possible; until then, all processes count
}

// Replicas returns the number of processes among which s would divide the limits if an outage began
// now. This is Options.Replicas or, if that is 0, the number of processes that s has counted, which
// is 0 at first.
func (s *Store) Replicas() int { return s.checker.processes.share.Load().n }
