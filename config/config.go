// Package config reads rules from a YAML file, by name, and reads them again
// when the file changes.
//
//	limits:
//	  - name: auth.createToken
//	    config: [{limit: 20, period: 60}, {limit: 5, period: 3}]
//
// That is all a file needs: it counts each client address with a sliding log.
// The rest has defaults, at the top of the file for all rules, in a rule for all
// of its limits:
//
//	trusted-proxies: [10.0.0.0/8] # whom the key ip believes
//	proxy-header: x-forwarded-for # what it believes of them, the default; or forwarded
//	key: ip                       # the default
//	algorithm: sliding-log        # the default
//	timezone: Europe/Berlin       # of calendar windows; UTC is the default
//	headers: [ietf, github]       # the default is that of Options.Limiter
//	limits:
//	  - name: upload
//	    key: [{first-of: [user, ip]}, method]
//	    algorithm: token-bucket
//	    cost: content-length
//	    shadow: true
//	    allow: [10.0.0.0/8]
//	    penalty: {strikes: {limit: 10, period: 60}, for: 10m}
//	    config:
//	      - {name: steady, limit: 1000000, period: 1m, burst: 5000000}
//	      - {name: monthly, limit: 1000000000, period: month}
//
// A file has trusted-proxies, proxy-header, key, algorithm, timezone, headers and
// limits. A rule has name, key, algorithm, burst, timezone, headers, cost, unit, shadow or
// allow, deny, penalty and config. A limit of its config has name,
// limit, period, algorithm, burst and timezone.
//
//   - key is ip, global, method, route, basic-auth-user, header:NAME,
//     cookie:NAME, path:NAME, or a name of Options.Keys. A list joins keys, and
//     {first-of: […]} is the first that applies. {header: NAME} is the same as
//     header:NAME.
//   - algorithm is gcra, token-bucket, leaky-bucket, fixed-window,
//     anchored-window, sliding-window, sliding-log or calendar.
//   - period is in seconds (60, 0.5), or a duration: 60s, 1h30m, 1d, 2w. The
//     periods day, week and month are those of the calendar.
//   - burst is for gcra, token-bucket and leaky-bucket; others have none.
//   - headers is x-ratelimit, ietf, draft-07, draft-06, github, openai,
//     anthropic, twitter or none, or a list of them.
//   - cost is a whole number of at least 1, content-length, or a name of
//     Options.Costs. content-length has the unit content-bytes, unless unit says
//     otherwise; a body of unknown length is refused.
//   - shadow: true decides and refuses nobody. shadow: 75% refuses a quarter of
//     the keys and nobody else.
//   - allow and deny are lists of what the rule does not apply to, and what it
//     refuses: addresses and networks, which are those of the request as the key ip
//     finds it, whatever the key of the rule is; keys as they are; and beginnings of
//     keys such as tenant-a/*. What no key of the rule can be is a mistake.
//   - penalty has strikes, for and most, as [weir.Penalty] does. The strikes are a
//     limit, counted in an anchored-window unless they have another algorithm.
//
// A file is at most 128 KiB of UTF-8, without anchors, aliases and tags. It is
// taken as a whole or not at all: every mistake in it is an [Error] with its
// line and column. A limit that never refuses, because another limit of the rule is
// always stricter, is a mistake too.
//
// What was spent is kept under the names of rule, limit and algorithm, and under
// the key, so a reload keeps every count for which these stay: limits may change
// their numbers, and join or leave a rule. The period names a limit that has no
// name ([weir.Limit.StoredName]): name those whose period may change. Where counts
// are lost the reload says so, see [Change]. It can't see that a program comes
// back with another secret of [weir.Hashed]; that is another key, too.
package config

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/seed83679106/weir"
)

// MaxSize is the size of the largest file that is read, in bytes: some 1,500
// rules. A parser's time and memory grow with what it is fed.
const MaxSize = 128 << 10

//go:embed schema.json
var schema string

// Schema returns a JSON schema (draft 2020-12) of the files, for editors. It
// knows of the structure, not of the names given in Options.
func Schema() string { return schema }

// Options of Open. All may be zero.
type Options struct {
	// Keys are key functions by the names that a file uses. A name has no colon
	// and is not that of a key that every file has.
	Keys map[string]weir.KeyFunc

	// Costs are costs by the names that a file uses.
	Costs map[string]func(r *http.Request) int64

	// Limiter has the options that a file does not: OnLimited, OnError, Observe
	// and so on. Its Rules must be empty. Headers is for rules whose file names
	// none. Logger gets what Watch has to say, too.
	Limiter weir.Options

	// FS has the file; nil is the operating system. An [embed.FS] is one.
	FS fs.FS
}

// A File is a file of rules as it was last read without a mistake. It is safe
// for concurrent use.
type File struct {
	path  string
	store weir.Store
	o     Options

	mu   sync.Mutex // held to change now
	uses [][]string // the names of each limiter in now
	now  atomic.Pointer[version]
}

// A version is what a File holds between two reloads. It never changes.
type version struct {
	data     []byte
	rules    []rule
	trusted  []netip.Prefix
	limiters []*weir.Limiter // one for each of uses
}

// Open reads a file of rules, whose limits are counted in store. It returns all
// mistakes of the file at once, each an [*Error].
func Open(path string, store weir.Store, o Options) (*File, error) {
	f := &File{path: path, store: store, o: o}
	if err := f.check(); err != nil {
		return nil, err
	}
	data, err := f.read()
	if err != nil {
		return nil, err
	}
	v, err := f.parse(data)
	if err != nil {
		return nil, err
	}
	f.now.Store(v)
	return f, nil
}

func (f *File) check() error {
	if f.store == nil {
		return errors.New("config: the store is nil")
	}
	if len(f.o.Limiter.Rules) > 0 {
		return errors.New("config: Options.Limiter has Rules; they belong in the file")
	}
	for name, key := range f.o.Keys {
		if err := checkName("Keys", name, key == nil, builtinKeys); err != nil {
			return err
		}
	}
	for name, cost := range f.o.Costs {
		if err := checkName("Costs", name, cost == nil, []string{contentLength}); err != nil {
			return err
		}
	}
	probe := f.o.Limiter
	probe.Rules = []weir.Rule{placeholder}
	_, err := weir.New(f.store, probe)
	return err
}

// Handler returns a middleware that charges the rules of those names together,
// all or nothing, as they are in the file at the time of the request; one that
// has begun ends with what it began with.
//
// It panics if the file has no such rule, as chi does on a mistake in its
// arguments: routes are built when a program starts, and one whose routes name a
// rule that is not there must not serve them unlimited. From then on the rule is
// in use and a file without it is not loaded.
func (f *File) Handler(names ...string) func(http.Handler) http.Handler {
	i := f.use(names)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.now.Load().limiters[i].Handler(next).ServeHTTP(w, r)
		})
	}
}

// use returns the index of the limiter with those names.
func (f *File) use(names []string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, used := range f.uses {
		if slices.Equal(used, names) {
			return i
		}
	}
	now := *f.now.Load()
	l, err := f.limiter(now.rules, names)
	if err != nil {
		panic(err)
	}
	f.uses = append(f.uses, slices.Clone(names))
	now.limiters = append(slices.Clip(now.limiters), l)
	f.now.Store(&now)
	return len(now.limiters) - 1
}

// Limiters returns the limiters that the handlers of the file use now: those of
// another moment are others. They are for package admin, say.
func (f *File) Limiters() []*weir.Limiter { return slices.Clone(f.now.Load().limiters) }

// TrustedProxies returns the trusted-proxies of the file, for whatever else of a
// request is to be believed from them alone.
func (f *File) TrustedProxies() []netip.Prefix { return slices.Clone(f.now.Load().trusted) }

// Rules returns the rules, in the order of the file, for a Limiter that a
// reload does not change, such as one for [weir.Limiter.Transport].
func (f *File) Rules() []weir.Rule {
	var rules []weir.Rule
	for _, r := range f.now.Load().rules {
		r.Limits = slices.Clone(r.Limits)
		rules = append(rules, r.Rule)
	}
	return rules
}

// Reload reads the file again and returns what is different. After an error
// everything is as it was. It is for a signal or a button; Watch calls it by
// itself.
func (f *File) Reload() (Changes, error) {
	data, err := f.read()
	if err != nil {
		return nil, err
	}
	return f.load(data)
}

func (f *File) load(data []byte) (Changes, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.now.Load()
	if bytes.Equal(data, old.data) {
		return nil, nil
	}
	v, err := f.parse(data)
	if err != nil {
		return nil, err
	}
	for _, names := range f.uses {
		l, err := f.limiter(v.rules, names)
		if err != nil {
			return nil, err
		}
		v.limiters = append(v.limiters, l)
	}
	f.now.Store(v)
	return changes(old.rules, v.rules), nil
}

func (f *File) parse(data []byte) (*version, error) {
	d := decoder{path: f.path, store: f.store, o: &f.o}
	rules := d.decode(data)
	if err := d.err(); err != nil {
		return nil, err
	}
	return &version{data: data, rules: rules, trusted: d.trusted}, nil
}

// limiter charges the named rules together.
func (f *File) limiter(rules []rule, names []string) (*weir.Limiter, error) {
	o := f.o.Limiter
	for _, name := range names {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.Name == name })
		if i < 0 {
			var known []string
			for _, r := range rules {
				known = append(known, r.Name)
			}
			return nil, fmt.Errorf("config: %s has no rule %q, which a handler needs%s", f.path, name, meant(name, known))
		}
		if r := rules[i]; len(o.Rules) == 0 {
			o.Headers = r.headers
		} else if r.headers != o.Headers {
			return nil, fmt.Errorf("config: %s: rules %q and %q are charged together, and their headers differ", f.path, names[0], name)
		}
		o.Rules = append(o.Rules, rules[i].Rule)
	}
	l, err := weir.New(f.store, o)
	if err != nil {
		return nil, fmt.Errorf("config: %s: rules %q together: %w", f.path, names, err)
	}
	return l, nil
}

func (f *File) read() ([]byte, error) {
	open := func(name string) (fs.File, error) { return os.Open(name) }
	if f.o.FS != nil {
		open = f.o.FS.Open
	}
	file, err := open(f.path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return data, nil
}

func (f *File) logger() *slog.Logger {
	if f.o.Limiter.Logger != nil {
		return f.o.Limiter.Logger
	}
	return slog.Default()
}
