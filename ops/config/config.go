package config

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/overrides"
)

// MaxSize is the maximum size, in bytes, of a file together with the files that it includes. A
// larger file is not loaded.
const MaxSize = 4 << 20

//go:embed schema.json
var schema string

// Schema returns a JSON schema (draft 2020-12) for rules files. Editors can use it to validate a
// file. The schema does not include the names in Options.Keys and Options.Costs.
func Schema() string { return schema }

// Options are options for Open. The zero value is ready to use.
type Options struct {
	// Keys maps names, as used in files, to key functions. A name must not contain a colon or be
	// the name of a built-in key.
	Keys map[string]weir.KeyFunc

	// Costs maps names, as used in files, to functions that return the cost of a request.
	Costs map[string]func(r *http.Request) int64

	// Secret is the secret of the keys that a file hashes, such as "hashed:header:X-Api-Key". A
	// secret needs at least 16 random bytes; see [weir.Hashed]. If Secret is nil, such a key is an
	// error.
	Secret []byte

	// Overrides are limits for individual keys that can change while the program runs, for example
	// through package admin. These overrides take precedence over the overrides in the file and are
	// not affected by reloads. nil means none.
	Overrides *overrides.Live

	// Limiter holds the options that are not in a file, such as OnLimited, OnError and Observe. Its
	// Rules must be empty. Its Headers are the default for a file that sets no headers. Watch logs
	// to its Logger.
	Limiter weir.Options

	// FS is the file system that contains the file, such as an [embed.FS]; nil means the operating
	// system's file system.
	FS fs.FS
}

// A File holds the rules loaded from a file. If a reload finds an error, the File keeps its current
// rules. It is safe for concurrent use.
type File struct {
	path  string
	store weir.Store
	o     Options

	reloads, failures atomic.Int64
	failed            atomic.Pointer[error] // the error of the last reload; nil if it did not fail

	mu       sync.Mutex // held to change handlers and current
	handlers [][]string // the names of the rules of each handler
	current  atomic.Pointer[version]
}

// A version holds the content of a File between two reloads. It is never changed.
type version struct {
	digest   string    // the SHA-256 of the content
	at       time.Time // when the content was decoded
	changed  []string  // what changed when it was loaded; empty if Open loaded it
	paths    []string  // the names of the files
	rules    []rule
	trusted  []netip.Prefix
	ip       weir.KeyFunc    // the key ip
	limiters []*weir.Limiter // one for each of File.handlers
}

// Open loads a rules file. The given store counts the units that requests spend. If the file
// contains errors, Open returns an error that wraps at most 100 of them, each as an [*Error]. Open
// does not watch the file: to apply later changes, call Watch or Reload. If a program calls neither
// method, no warning is logged, because the program may want to read its file only once.
func Open(path string, store weir.Store, o Options) (*File, error) {
	if o.FS == nil {
		o.FS = disk{}
	}
	f := &File{path: path, store: store, o: o}
	if err := f.check(); err != nil {
		return nil, err
	}
	c, err := f.read()
	if err != nil {
		return nil, err
	}
	v, err := c.version()
	if err != nil {
		return nil, err
	}
	f.current.Store(v)
	v.warn(f.logger())
	return f, nil
}

// logger returns a logger whose lines contain the path of the file.
func (f *File) logger() *slog.Logger {
	return cmp.Or(f.o.Limiter.Logger, slog.Default()).With("file", f.path)
}

// warn logs a warning for each rule that stores credentials in plain text.
func (v *version) warn(log *slog.Logger) {
	for i := range v.rules {
		if name := v.rules[i].key.credentials(); name != "" {
			log.Warn("config: credentials stored in plain text", "rule", v.rules[i].Name, "field", name,
				"effect", "whoever can read the store or the operators' page can use them", "fix", "write "+hashedKey+":"+headerKey+":"+name)
		}
	}
}

// check returns an error if an argument of Open is invalid.
func (f *File) check() error {
	if safe.Nil(f.store) {
		return errors.New("config: the store is nil")
	}
	if len(f.o.Limiter.Rules) > 0 {
		return errors.New("config: Options.Limiter.Rules is set; want nil, because the file has the rules")
	}
	for _, name := range slices.Sorted(maps.Keys(f.o.Keys)) {
		if err := checkName("Keys", name, f.o.Keys[name] == nil, builtinKeys); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.o.Costs)) {
		if err := checkName("Costs", name, f.o.Costs[name] == nil, []string{contentLength}); err != nil {
			return err
		}
	}
	if n := len(f.o.Secret); n > 0 && n < storedkey.MinSecret {
		return fmt.Errorf("config: Options.Secret has %d bytes; want at least %d", n, storedkey.MinSecret)
	} else if n > 0 && storedkey.IsZero(f.o.Secret) {
		return errors.New("config: Options.Secret has only zero bytes; want bytes chosen at random")
	}
	probe := f.o.Limiter
	probe.Logger = slog.New(slog.DiscardHandler) // a warning comes from the Limiters of the file
	probe.Rules = []weir.Rule{{Name: "a", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Second)}}}
	_, err := weir.New(memstore.New(memstore.Options{}), probe) // only New checks the options; with f.store, other processes would see the test rule
	return err
}

// Handler returns middleware that charges the named rules together: a request refused by one rule
// spends nothing under the others. Each request is limited by the rules in force when it arrives,
// even if the file is reloaded before the response is complete.
//
// Handler panics if the file lacks one of the rules, or if the rules cannot be charged together.
// Otherwise a program with a misspelled rule name would serve a route without limits. After a call
// to Handler, a reload fails if it would remove one of these rules.
func (f *File) Handler(names ...string) func(http.Handler) http.Handler {
	i := f.mustUse(names)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.current.Load().limiters[i].Handler(next).ServeHTTP(w, r)
		})
	}
}

// HandlerOfAll returns middleware that charges all rules in the file together. It uses the rules in
// force when a request arrives, so a reload may add and remove rules. All rules must have the same
// headers setting. Otherwise HandlerOfAll returns an error, and a reload fails if it would make the
// settings differ.
func (f *File) HandlerOfAll() (func(http.Handler) http.Handler, error) {
	if _, err := f.use(all); err != nil {
		return nil, err
	}
	return f.Handler(all...), nil
}

// Admit returns a function that applies the named rules to a request, in the same way as
// [weir.Limiter.Admit]. The function uses the rules in force when it is called. It is intended for
// servers that do not use http.Handler, such as gRPC servers that use package weirgrpc. Admit
// panics in the same cases as Handler.
func (f *File) Admit(names ...string) func(*http.Request) (*weir.Admission, error) {
	i := f.mustUse(names)
	return func(r *http.Request) (*weir.Admission, error) { return f.current.Load().limiters[i].Admit(r) }
}

// all stands for the names of all rules. No rule has such a name.
var all = []string{"\x00"}

// mustUse is like use, but panics if there is an error.
func (f *File) mustUse(names []string) int {
	i, err := f.use(names)
	if err != nil {
		panic(err)
	}
	return i
}

// use returns the index of the limiter that has the named rules. If there is none yet, use makes
// it.
func (f *File) use(names []string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, n := range f.handlers {
		if slices.Equal(n, names) {
			return i, nil
		}
	}
	next := *f.current.Load()
	l, err := f.limiter(next.rules, names)
	if err != nil {
		return 0, err
	}
	f.handlers = append(f.handlers, slices.Clone(names))
	next.limiters = append(slices.Clip(next.limiters), l)
	f.current.Store(&next)
	return len(next.limiters) - 1, nil
}

// Limiters returns the Limiters that the file's handlers currently use, for example for package
// admin. A reload replaces them.
func (f *File) Limiters() []*weir.Limiter { return slices.Clone(f.current.Load().limiters) }

// TrustedProxies returns the proxies listed under trusted-proxies in the file, and the zero Prefix
// for unix, as weir.ByIP expects them. Use this list if your program also trusts other header fields
// from these proxies.
func (f *File) TrustedProxies() []netip.Prefix { return slices.Clone(f.current.Load().trusted) }

// ByIP returns the key function that "key: ip" selects in the file. The function uses the
// trusted-proxies and proxy-header settings in force when the request arrives. Use ByIP for limits
// that the program defines outside the file.
func (f *File) ByIP() weir.KeyFunc {
	return func(r *http.Request) (string, bool) { return f.current.Load().ip(r) }
}

// Version returns the version of the rules in force: the first 12 hexadecimal digits of a SHA-256
// hash of the file and the files that it includes. Replicas that have loaded the same files have
// the same version.
func (f *File) Version() string { return f.current.Load().digest[:12] }

// Loaded returns the time at which the rules in force were loaded by Open or a reload.
func (f *File) Loaded() time.Time { return f.current.Load().at }

// Changed returns the changes made by the reload that loaded the rules in force: for each change,
// the text that [Change.String] returns, in the order of the file. The result is empty after Open,
// and after a reload of a changed file that changed no rule. A reload that finds the files
// unchanged does not affect the result of Changed.
func (f *File) Changed() []string { return slices.Clone(f.current.Load().changed) }

// Reloads returns how many times a changed file has been loaded since Open, and how many reloads
// have failed.
func (f *File) Reloads() (loaded, failed int64) { return f.reloads.Load(), f.failures.Load() }

// Err returns the last reload's error, or nil if that reload succeeded or there was no reload.
// While Err returns an error, the rules in force may differ from those in the file.
func (f *File) Err() error {
	if err := f.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Unused returns the names of rules that no handler uses. These rules limit no requests, unless the
// program obtains them from Rules and applies them itself.
func (f *File) Unused() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(namesOf(f.current.Load().rules), func(name string) bool {
		return slices.ContainsFunc(f.handlers, func(used []string) bool {
			return slices.Equal(used, all) || slices.Contains(used, name)
		})
	})
}

// Check loads a file without applying its rules, and returns the error that Open would return. Use
// Check, for example, before you deploy a file. Pass the same Keys, Costs, FS and Limiter that you
// pass to Open, because the errors depend on them. Check never calls the functions in Keys and
// Costs.
func Check(path string, o Options) error {
	_, err := Open(path, memstore.New(memstore.Options{}), o)
	return err
}

// Rules returns the rules in the order in which they appear in the file. Use Rules to build a
// Limiter that is not affected by reloads, such as one for [weir.Limiter.Transport].
func (f *File) Rules() []weir.Rule {
	var rules []weir.Rule
	for _, r := range f.current.Load().rules {
		r.Limits = slices.Clone(r.Limits)
		rules = append(rules, r.Rule)
	}
	return rules
}

// Reads returns the parts of a request on which a rule's key, class and cost depend, such as "ip",
// "header:X-Tenant" and "content-length", and "status" if the cost depends on the response. If a
// key is a list or uses first-of, Reads includes the parts on which each of its elements depends.
// Use Reads in programs that have only part of each request, such as a line of an access log. If
// there is no such rule, Reads returns nil.
func (f *File) Reads(rule string) []string {
	r := ruleNamed(f.current.Load().rules, rule)
	if r == nil {
		return nil
	}
	sources := r.key.reads(nil)
	if r.Class != nil {
		sources = r.class.reads(sources)
	}
	if r.Cost != nil && r.cost.n == 0 {
		sources = append(sources, r.cost.text)
	}
	if r.settle.byStatus {
		sources = append(sources, "status")
	}
	return sources
}

// Reload reads the file again and returns what changed. If Reload returns an error, the rules are
// unchanged. Call Reload when an operator requests a reload, for example with a signal. Watch
// reloads the file automatically.
func (f *File) Reload() (Changes, error) { return f.load(f.read()) }

// load replaces the rules with those in c and returns what changed. err is the error from reading
// c; load counts and returns this error.
func (f *File) load(c *content, err error) (changes Changes, _ error) {
	if err == nil {
		changes, err = f.replace(c)
	}
	if err != nil {
		f.failures.Add(1)
		f.failed.Store(&err)
		return nil, err
	}
	f.failed.Store(nil)
	return changes, nil
}

func (f *File) replace(c *content) (Changes, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.current.Load()
	if c.digest == old.digest {
		return nil, nil
	}
	v, err := c.version()
	if err != nil {
		return nil, err
	}
	sparse.Reloads.Add(1)
	defer sparse.Reloads.Add(-1)
	for _, names := range f.handlers {
		l, err := f.limiter(v.rules, names)
		if err != nil {
			return nil, err
		}
		v.limiters = append(v.limiters, l)
	}
	list := changes(old.rules, v.rules)
	for _, c := range list {
		v.changed = append(v.changed, c.String())
	}
	f.current.Store(v)
	v.warn(f.logger())
	f.reloads.Add(1)
	return list, nil
}

// version returns a version without limiters, or the errors in the content.
func (c *content) version() (*version, error) {
	rules := c.decode()
	if err := c.err(); err != nil {
		return nil, err
	}
	return &version{digest: c.digest, at: time.Now(), paths: c.paths, rules: rules, trusted: c.trusted, ip: c.ipKey().fn},
		nil
}

// limiter returns a Limiter that charges the named rules together.
func (f *File) limiter(rules []rule, names []string) (*weir.Limiter, error) {
	o := f.o.Limiter
	if slices.Equal(names, all) {
		names = namesOf(rules)
	}
	for _, name := range names {
		r := ruleNamed(rules, name)
		if r == nil {
			return nil, fmt.Errorf("config: %s has no rule %q, which a handler needs%s", f.path, name,
				suggest(name, namesOf(rules)))
		}
		if len(o.Rules) == 0 {
			o.Headers = r.headers
		} else if r.headers != o.Headers {
			return nil, fmt.Errorf("config: %s: rules %q and %q are charged together, but their headers differ", f.path,
				names[0], name)
		}
		o.Rules = append(o.Rules, r.Rule)
	}
	l, err := weir.New(f.store, o)
	if err != nil {
		return nil, fmt.Errorf("config: %s: rules %q together: %w", f.path, names, err)
	}
	return l, nil
}
