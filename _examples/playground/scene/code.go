package scene

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Deployment says where a limit is used. Its zero value is one server without a proxy that limits
// each client address.
type Deployment struct {
	Whose   string `json:"whose"`   // whose quota it is: "ip", "key" (of an API) or "account"
	Proxy   bool   `json:"proxy"`   // whether a proxy forwards the requests
	Several bool   `json:"several"` // whether several servers count together, in Redis
	Down    string `json:"down"`    // what they do while Redis is down: "memory", "open" or "closed"
}

// A code writes a program, a test and a file of rules for a limit.
type code struct {
	*kind
	*settings
	Deployment
}

// duration returns Go code for a number of seconds.
func duration(seconds int64) string {
	for _, u := range []struct {
		seconds int64
		code    string
	}{{24 * 60 * 60, "24 * time.Hour"}, {60 * 60, "time.Hour"}, {60, "time.Minute"}, {1, "time.Second"}} {
		switch n := seconds / u.seconds; {
		case seconds == 0 || seconds%u.seconds != 0:
		case n == 1:
			return strings.ReplaceAll(u.code, " ", "")
		default:
			return fmt.Sprintf("%d*%s", n, strings.ReplaceAll(u.code, " ", ""))
		}
	}
	return "0"
}

// function returns the name of the algorithm's function in package algorithms.
func (k *kind) function() (name string) {
	if k.name == "gcra" {
		return "GCRA"
	}
	for word := range strings.SplitSeq(k.name, "-") {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	return name
}

// call returns Go code for the limit of the settings.
func (k *kind) call(set *settings) string {
	numbers := fmt.Sprintf("%d, %s", set.Quota, duration(set.Period))
	switch {
	case k.extra:
		numbers = fmt.Sprintf("%d, algorithms.Day, time.UTC", set.Quota)
	case k.bucket != nil && k.name != "gcra":
		numbers = fmt.Sprintf("%d, %s", set.burst(), numbers)
	}
	code := "algorithms." + k.function() + "(" + numbers + ")"
	if k.name == "gcra" && set.burst() != set.Quota {
		code += fmt.Sprintf(".WithBurst(%d)", set.burst())
	}
	return code
}

func (c code) closed() bool    { return c.Several && c.Down == "closed" }
func (c code) open() bool      { return c.Several && c.Down == "open" }
func (c code) byAddress() bool { return c.Whose != "key" && c.Whose != "account" }

// site returns a function that returns the handler of the program, behind its limit.
func (c code) site() string {
	key, handler, within := "weir.ByIP()", "limit(http.HandlerFunc(hello))", int64(c.within(c.settings)/time.Second)
	note := ""
	switch {
	case !c.byAddress():
		key, handler = "weir.ByContext(clientKey{})", "authenticate("+handler+")"
	case c.Proxy:
		key = "weir.ByIP(proxies)"
		note = "\tproxies := netip.MustParsePrefix(\"10.0.0.0/8\") // the network of your proxies, without any client\n"
	}
	s := "// site returns the handler behind its limit.\nfunc site(store weir.Store) http.Handler {\n" + note
	if within == 0 && !c.closed() {
		return s + fmt.Sprintf("\tlimit := weir.Middleware(store, \"api\", %s, %s)\n\treturn %s\n}\n", key, c.call(c.settings), handler)
	}
	s += "\tlimiter, err := weir.New(store, weir.Options{\n"
	if c.closed() {
		s += "\t\tOnError: weir.FailClosed, // refuses with 503 while Redis is down\n"
	}
	if within > 0 {
		s += "\t\tMaxWait: " + strings.Replace(duration(within), "*", " * ", 1) + ",\n"
	}
	return s + fmt.Sprintf(`		Rules:   []weir.Rule{{Name: "api", Key: %s, Limits: []weir.Limit{%s}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	return %s
}
`, key, c.call(c.settings), strings.Replace(handler, "limit(", "limiter.Handler(", 1))
}

const (
	oneServer = `	store := memstore.New(memstore.Options{}) // counts in this process
	log.Fatal(http.ListenAndServe("localhost:8080", site(store)))
`
	severalServers = `	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, "localhost:6379"))
	store, err := stack.New(rdb, stack.Options{Replicas: 3}) // three servers
	if err != nil {
		log.Fatal(err)
	}
%s	log.Fatal(http.ListenAndServe(":8080", site(%s)))
`
	hello = `
func hello(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "hello")
}
`
	authenticate = `
type clientKey struct{}

// authenticate stands for yours. It runs before the limit, which counts by what it finds.
func authenticate(next http.Handler) http.Handler {
	clients := map[string]string{"secret-1": %q, "secret-2": %q} // %s
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, ok := clients[r.Header.Get("X-API-Key")]
		if !ok {
			http.Error(w, "unknown API key", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientKey{}, client)))
	})
}
`
)

// program returns a Go program that serves HTTP under the limit.
func (c code) program() string {
	s := "func main() {\n"
	switch {
	case !c.Several:
		s += oneServer
	case c.open():
		s += fmt.Sprintf(severalServers, "\t// Without the fallback, requests are allowed while Redis is down.\n", "store.WithoutFallback()")
	case c.closed():
		s += fmt.Sprintf(severalServers, "", "store.WithoutFallback()")
	default:
		s += fmt.Sprintf(severalServers, "\t// While Redis is down, each server counts its share of the limit in memory.\n", "store")
	}
	s += "}\n\n" + c.site() + hello
	switch c.Whose {
	case "key":
		s += fmt.Sprintf(authenticate, "key 1", "key 2", "a name for each API key")
	case "account":
		s += fmt.Sprintf(authenticate, "ada", "ada", "the API keys of an account share its quota")
	}
	return file(s)
}

// yaml returns a file of rules with the limit. It names the command weir serve only if that can run
// it: the keys of a program and a MaxWait need package config.
func (c code) yaml() string {
	s, waits := "", c.within(c.settings) > 0
	if c.Several && c.Whose != "account" && !waits {
		s = fmt.Sprintf("# weir serve -limits limits.yaml -redis-addrs localhost:6379 -replicas 3 -redis-down %s\n", map[bool]string{true: c.Down, false: "memory"}[c.open() || c.closed()])
	}
	if waits {
		s += "# Requests wait only with a MaxWait, which is in Options.Limiter of package config.\n"
	}
	if c.byAddress() && c.Proxy {
		s += "trusted-proxies: [10.0.0.0/8] # the network of your proxies, without any client\n"
	}
	s += "limits:\n  - name: api\n"
	switch c.Whose {
	case "key":
		s += "    key: header:X-API-Key # checked before, or clients make up keys\n    no-key: refuse\n"
	case "account":
		s += "    key: account # which your program defines: Options.Keys of package config\n"
	}
	s += "    algorithm: " + c.name + "\n"
	if c.bucket != nil && c.burst() != c.Quota {
		s += fmt.Sprintf("    burst: %d\n", c.Burst)
	}
	period := strconv.FormatInt(c.Period, 10)
	if c.extra {
		period = "day"
	}
	return s + fmt.Sprintf("    config: [{limit: %d, period: %s}]\n", c.Quota, period)
}

// packages are those that code may import, in the order of imports; an empty path is an empty line.
var packages = []string{"context", "fmt", "log", "net/http", "net/http/httptest", "net/netip", "syscall", "testing", "testing/synctest", "time", "",
	"github.com/redis/go-redis/v9", "", weirPath, weirPath + "/algorithms", weirPath + "/memstore", weirPath + "/quota", weirPath + "/redisstore", weirPath + "/redisstore/stack"}

const weirPath = "github.com/seed83679106/weir"

// file returns a Go file with imports of the packages that its declarations use.
func file(declarations string) string {
	imports, gap := "", ""
	for _, path := range packages {
		name := strings.TrimPrefix(path[strings.LastIndex(strings.TrimSuffix(path, "/v9"), "/")+1:], "go-")
		switch name = strings.TrimSuffix(name, "/v9"); {
		case path == "":
			gap = "\n"
		case uses(declarations, name):
			imports += gap + "\t\"" + path + "\"\n"
			gap = ""
		}
	}
	return "package main\n\nimport (\n" + strings.TrimPrefix(imports, "\n") + ")\n\n" + declarations
}

// uses reports whether code names something of a package.
func uses(code, pkg string) bool {
	for rest, found := code, true; ; {
		var before string
		if before, rest, found = strings.Cut(rest, pkg+"."); !found {
			return false
		}
		wordBefore := before != "" && (before[len(before)-1] == '_' || isLetter(before[len(before)-1]))
		if !wordBefore && rest != "" && 'A' <= rest[0] && rest[0] <= 'Z' {
			return true
		}
	}
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' }
