package config

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/overrides"
)

// MaxSize is the maximum size, in bytes, of a file together with the files that it includes. A
// larger file is not loaded. MaxSize limits the time and memory that the parser uses.
const MaxSize = 4 << 20

//go:embed schema.json
var schema string

// Schema returns a JSON schema (draft 2020-12) that describes the structure of a file, for use in
// editors. It does not include the names of the functions in Options.
func Schema() string { return schema }

// Options are the options of Open. The zero value is ready to use.
type Options struct {
	// Keys maps names, as used in files, to key functions. A name must not contain a colon or be
	// the name of a built-in key.
	Keys map[string]weir.KeyFunc

	// Costs maps names, as used in files, to functions that return the cost of a request.
	Costs map[string]func(r *http.Request) int64

	// Overrides are limits for individual keys that can change while the program runs, for example
	// through package admin. They take precedence over the overrides in the file, and reloads do
	// not affect them. nil means none.
	Overrides *overrides.Live

	// Limiter has the options that are not in a file, such as OnLimited, OnError and Observe. Its
	// Rules must be empty. Its Headers are the default for a file that sets no headers. Watch logs
	// to its Logger.
	Limiter weir.Options

	// FS is the file system that contains the file, such as an [embed.FS]; nil means the file
	// system of the operating system.
	FS fs.FS
}

// A File holds the rules that were loaded from a file. If a reload finds an error in the file, the
// File keeps its current rules. It is safe for concurrent use.
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

// A version is the content of a File between two reloads. It is never changed.
type version struct {
	digest   string    // the SHA-256 of the content
	at       time.Time // when the content was decoded
	paths    []string  // the names of the files
	rules    []rule
	trusted  []netip.Prefix
	ip       weir.KeyFunc    // the key ip
	limiters []*weir.Limiter // one for each of File.handlers
}

// Open loads a rules file. The limits of its rules are counted in store. If the file has errors,
// the error that Open returns wraps at most 100 of them, each an [*Error].
func Open(path string, store weir.Store, o Options) (*File, error) {
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
	return f, nil
}

// check returns an error if an argument of Open is invalid.
func (f *File) check() error {
	if f.store == nil {
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
	probe := f.o.Limiter
	probe.Rules = []weir.Rule{{Name: "a", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Second)}}}
	_, err := weir.New(f.store, probe) // only New checks the options
	return err
}

// Handler returns a middleware that charges the named rules together, all or nothing. The rules
// that are in force when a request arrives apply to it; a later reload does not affect it.
//
// Handler panics if the file lacks one of the rules, or if the rules cannot be charged together.
// Routes are built when a program starts, and a program must not serve a route without limits
// because its rule is missing. After a call to Handler, a reload that would remove one of these
// rules fails.
func (f *File) Handler(names ...string) func(http.Handler) http.Handler {
	i := f.handler(names)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.current.Load().limiters[i].Handler(next).ServeHTTP(w, r)
		})
	}
}

// HandlerOfAll returns a middleware that charges all rules of the file together. It uses the rules
// that are in force when a request arrives, so a reload may add and remove rules. All rules must
// have the same headers: HandlerOfAll panics if they differ, and a later reload in which they
// differ fails.
func (f *File) HandlerOfAll() func(http.Handler) http.Handler {
	return f.Handler(all...)
}

// Admit returns a function that applies the named rules to requests, as Handler does: it calls
// [weir.Limiter.Admit] with the rules in force. It is for package weirgrpc and for other servers
// that are not an http.Handler. Admit panics in the same cases as Handler.
func (f *File) Admit(names ...string) func(*http.Request) (*weir.Admission, error) {
	i := f.handler(names)
	return func(r *http.Request) (*weir.Admission, error) { return f.current.Load().limiters[i].Admit(r) }
}

// all stands for the names of all rules. No rule has such a name.
var all = []string{"\x00"}

// handler returns the index of the limiter of the named rules. It makes the limiter if there
// is none yet.
func (f *File) handler(names []string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, n := range f.handlers {
		if slices.Equal(n, names) {
			return i
		}
	}
	next := *f.current.Load()
	l, err := f.limiter(next.rules, names)
	if err != nil {
		panic(err)
	}
	f.handlers = append(f.handlers, slices.Clone(names))
	next.limiters = append(slices.Clip(next.limiters), l)
	f.current.Store(&next)
	return len(next.limiters) - 1
}

// Limiters returns the Limiters that the file's handlers currently use, for example to pass them
// to package admin. A reload replaces them.
func (f *File) Limiters() []*weir.Limiter { return slices.Clone(f.current.Load().limiters) }

// TrustedProxies returns the trusted-proxies of the file, for programs that also trust other
// header fields from these proxies.
func (f *File) TrustedProxies() []netip.Prefix { return slices.Clone(f.current.Load().trusted) }

// ByIP returns the key function that the file calls ip. It finds the client's address with the
// trusted-proxies and the proxy-header that are in force when the request arrives. ByIP is for
// limits that the program defines outside the file.
func (f *File) ByIP() weir.KeyFunc {
	return func(r *http.Request) (string, bool) { return f.current.Load().ip(r) }
}

// Version returns the version of the rules in force: the first 12 hexadecimal digits of
// the SHA-256 of the file and of the files that it includes. Replicas that have loaded
// the same files have the same version.
func (f *File) Version() string { return f.current.Load().digest[:12] }

// Loaded returns when the rules in force were loaded, by Open or by a reload.
func (f *File) Loaded() time.Time { return f.current.Load().at }

// Reloads returns how often a changed file has been loaded since Open, and how often a reload has
// failed and left the rules unchanged.
func (f *File) Reloads() (loaded, failed int64) { return f.reloads.Load(), f.failures.Load() }

// Err returns the error of the last reload, or nil if the reload succeeded or there was none.
// While Err is not nil, the rules in force may differ from the file.
func (f *File) Err() error {
	if err := f.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Unused returns the names of the rules that no handler uses. They limit no request,
// unless the program takes them from Rules.
func (f *File) Unused() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.current.Load().rules {
		if !slices.ContainsFunc(f.handlers, func(used []string) bool { return slices.Equal(used, all) || slices.Contains(used, r.Name) }) {
			names = append(names, r.Name)
		}
	}
	return names
}

// Check loads a file without using its rules, and returns the error that Open would return. Use
// it, for example, before a file is deployed. Which errors it finds depends on Keys, Costs, FS and
// Limiter of o. Check never calls the functions in Keys and Costs.
func Check(path string, o Options) error {
	_, err := Open(path, memstore.New(memstore.Options{}), o)
	return err
}

// Rules returns the rules of the file, in the order of the file. They are for a Limiter that
// reloads do not affect, such as one for [weir.Limiter.Transport].
func (f *File) Rules() []weir.Rule {
	var rules []weir.Rule
	for _, r := range f.current.Load().rules {
		r.Limits = slices.Clone(r.Limits)
		rules = append(rules, r.Rule)
	}
	return rules
}

// Reads returns the parts of a request that the key and the cost of a rule read, in the syntax of
// the file: "ip", "header:X-Tenant", "content-length" and so on. It includes those in a list or in
// first-of. It is for programs that have only a part of each request, such as its line in a log.
// If there is no such rule, Reads returns nil.
func (f *File) Reads(rule string) []string {
	r := ruleNamed(f.current.Load().rules, rule)
	if r == nil {
		return nil
	}
	sources := r.key.reads(nil)
	if r.Cost != nil && r.cost.n == 0 {
		sources = append(sources, r.cost.text)
	}
	return sources
}

// Reload reads the file again and returns what changed. After an error the rules are unchanged.
// Call Reload when an operator asks for a reload, for example with a signal. Watch reloads the
// file automatically.
func (f *File) Reload() (Changes, error) { return f.load(f.read()) }

// load replaces the rules by those in c and returns what changed. err is the error of
// reading c; load counts and returns it.
func (f *File) load(c *content, err error) (changes Changes, _ error) {
	before := f.current.Load()
	if err == nil {
		changes, err = f.replace(c)
	}
	if err != nil {
		f.failures.Add(1)
		f.failed.Store(&err)
		return nil, err
	}
	if f.current.Load() != before {
		f.reloads.Add(1)
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
	for _, names := range f.handlers {
		l, err := f.limiter(v.rules, names)
		if err != nil {
			return nil, err
		}
		v.limiters = append(v.limiters, l)
	}
	f.current.Store(v)
	return changes(old.rules, v.rules), nil
}

// version returns a version without limiters, or the errors in the content.
func (c *content) version() (*version, error) {
	rules := c.decode()
	if err := c.err(); err != nil {
		return nil, err
	}
	return &version{digest: c.digest, at: time.Now(), paths: c.paths, rules: rules, trusted: c.trusted, ip: c.ipKey().fn}, nil
}

// limiter returns a Limiter that charges the named rules together.
func (f *File) limiter(rules []rule, names []string) (*weir.Limiter, error) {
	o := f.o.Limiter
	if slices.Equal(names, all) {
		names = nil
		for _, r := range rules {
			names = append(names, r.Name)
		}
	}
	for _, name := range names {
		r := ruleNamed(rules, name)
		if r == nil {
			var known []string
			for _, r := range rules {
				known = append(known, r.Name)
			}
			return nil, fmt.Errorf("config: %s has no rule %q, which a handler needs%s", f.path, name, suggest(name, known))
		}
		if len(o.Rules) == 0 {
			o.Headers = r.headers
		} else if r.headers != o.Headers {
			return nil, fmt.Errorf("config: %s: rules %q and %q are charged together, but their headers differ", f.path, names[0], name)
		}
		o.Rules = append(o.Rules, r.Rule)
	}
	l, err := weir.New(f.store, o)
	if err != nil {
		return nil, fmt.Errorf("config: %s: rules %q together: %w", f.path, names, err)
	}
	return l, nil
}
