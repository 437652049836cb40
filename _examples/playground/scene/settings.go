package scene

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// settings are what a link to a scene contains.
type settings struct {
	Algorithms []string `json:"algorithms"`
	Quota      int64    `json:"quota"`
	Period     int64    `json:"period"`  // in seconds
	Burst      int64    `json:"burst"`   // 0 means Quota
	Wait       int64    `json:"wait"`    // how long a request may wait, in seconds
	Pattern    string   `json:"pattern"` // one of patternNames
	Rate       float64  `json:"rate"`    // requests per second, for patterns that have a rate
	Speed      float64  `json:"speed"`   // seconds of the scene for each real second
	Paused     bool     `json:"paused"`
	Redis      bool     `json:"redis"`  // the store is Redis; otherwise it is the memory of this process
	Hybrid     bool     `json:"hybrid"` // a Hybrid is in front of Redis
}

// The largest values of the settings.
const (
	maxQuota  = 1e6
	maxPeriod = 30 * 24 * 60 * 60
	maxWait   = 600
	minRate   = 1e-5 // about one a day
	maxRate   = 50
	maxSpeed  = maxPeriod / 10 // the longest period lasts 10 s
)

// A kind describes an algorithm, and how Go code and files of rules name it.
type kind struct {
	name, title, about string
	limit              func(n int64, period time.Duration) quota.Limit // for algorithms without a burst
	bucket             func(burst, n int64, period time.Duration) quota.Limit
	queue              bool // requests may wait even if the setting Wait is 0
	extra              bool // shown only in scenes that name it
}

var kinds = []kind{
	{name: "fixed-window", title: "Fixed window", about: "counts in windows aligned to the clock", limit: algorithms.FixedWindow},
	{name: "anchored-window", title: "Anchored window", about: "a window begins with its first request", limit: algorithms.AnchoredWindow},
	{name: "sliding-window", title: "Sliding window", about: "two counters, the older one weighted", limit: algorithms.SlidingWindow},
	{name: "sliding-log", title: "Sliding log", about: "keeps the time of each request: exact", limit: algorithms.SlidingLog},
	{name: "token-bucket", title: "Token bucket", about: "tokens come back one by one", bucket: algorithms.TokenBucket},
	{name: "leaky-bucket", title: "Leaky bucket", about: "a queue: requests wait and leave one by one", bucket: algorithms.LeakyBucket, queue: true},
	{name: "gcra", title: "GCRA", about: "keeps one number: the instant up to which the quota is spent", bucket: gcra},
	{name: "calendar", title: "Calendar", about: "counts in days; a new one begins at midnight UTC", limit: calendar, extra: true},
}

func calendar(n int64, _ time.Duration) quota.Limit {
	return algorithms.Calendar(n, algorithms.Day, nil)
}

// within returns how long a request may wait.
func (k *kind) within(set *settings) time.Duration {
	if k.queue && set.Wait == 0 {
		return time.Duration(set.Period) * time.Second
	}
	return time.Duration(set.Wait) * time.Second
}

func gcra(burst, n int64, period time.Duration) quota.Limit {
	l := algorithms.GCRA(n, period)
	if burst != n {
		l = l.WithBurst(burst)
	}
	return l
}

func kindOf(algorithm string) *kind {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == algorithm })
	if i < 0 {
		return nil
	}
	return &kinds[i]
}

func (k *kind) limitOf(set *settings) quota.Limit {
	period := time.Duration(set.Period) * time.Second
	if k.bucket == nil {
		return k.limit(set.Quota, period)
	}
	return k.bucket(set.burst(), set.Quota, period)
}

func (set *settings) burst() int64 {
	if set.Burst == 0 {
		return set.Quota
	}
	return set.Burst
}

func parseLink(link string) (settings, error) {
	q, err := url.ParseQuery(link)
	if err != nil {
		return settings{}, err
	}
	return parse(q)
}

// parse reads the settings of a link. A setting that is missing gets its default.
func parse(q url.Values) (settings, error) {
	p := parser{q: q}
	set := settings{
		Quota:   int64(p.number("quota", 10, 1, maxQuota, true)),
		Period:  int64(p.number("period", 10, 1, maxPeriod, true)),
		Burst:   int64(p.number("burst", 0, 0, maxQuota, true)),
		Wait:    int64(p.number("wait", 0, 0, maxWait, true)),
		Rate:    p.number("rate", 3, minRate, maxRate, false),
		Speed:   p.number("speed", 1, 0.1, maxSpeed, false),
		Pattern: p.choice("pattern", "bursts", patternNames...),
		Paused:  p.choice("paused", "no", "no", "yes") == "yes",
		Redis:   p.choice("store", "memory", "memory", "redis") == "redis",
		Hybrid:  p.choice("hybrid", "no", "no", "yes") == "yes",
	}
	set.Algorithms = usual()
	if q.Get("algorithms") != "" {
		set.Algorithms = strings.Split(q.Get("algorithms"), ",")
		for i, name := range set.Algorithms {
			if kindOf(name) == nil || slices.Contains(set.Algorithms[:i], name) {
				p.fail("algorithms: %.20q is unknown or appears twice", name)
				break
			}
		}
	}
	return set, p.err
}

// usual returns the algorithms of a scene whose link names none.
func usual() (names []string) {
	for _, k := range kinds {
		if !k.extra {
			names = append(names, k.name)
		}
	}
	return names
}

// query returns the settings as the query of a link, which parse can read. Settings that
// have their default are left out.
func (set *settings) query() string {
	var parts []string
	add := func(name, value, usual string) {
		if value != usual {
			parts = append(parts, name+"="+value)
		}
	}
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	float := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	add("algorithms", strings.Join(set.Algorithms, ","), strings.Join(usual(), ","))
	add("quota", strconv.FormatInt(set.Quota, 10), "10")
	add("period", strconv.FormatInt(set.Period, 10), "10")
	add("burst", strconv.FormatInt(set.Burst, 10), "0")
	add("wait", strconv.FormatInt(set.Wait, 10), "0")
	add("pattern", set.Pattern, "bursts")
	add("rate", float(set.Rate), "3")
	add("speed", float(set.Speed), "1")
	add("paused", yes(set.Paused), "no")
	if set.Redis {
		add("store", "redis", "")
	}
	add("hybrid", yes(set.Hybrid), "no")
	return strings.Join(parts, "&")
}

// A parser keeps the first mistake that it finds.
type parser struct {
	q   url.Values
	err error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *parser) number(name string, usual, least, most float64, whole bool) float64 {
	s := p.q.Get(name)
	if s == "" {
		return usual
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x >= least && x <= most) || whole && x != float64(int64(x)) {
		what := "number"
		if whole {
			what = "whole number"
		}
		plain := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
		p.fail("%s: %.20q is not a %s from %s to %s", name, s, what, plain(least), plain(most))
		return usual
	}
	return x
}

func (p *parser) choice(name, usual string, choices ...string) string {
	s := p.q.Get(name)
	if s == "" {
		return usual
	}
	if !slices.Contains(choices, s) {
		p.fail("%s: %.20q is not one of %s", name, s, strings.Join(choices, ", "))
		return usual
	}
	return s
}
