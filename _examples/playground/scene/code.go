package scene

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

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

// limiter returns Go code that makes a middleware with the limit.
func (k *kind) limiter(set *settings) string {
	within := int64(k.within(set) / time.Second)
	if within == 0 {
		return `	limit := weir.Middleware(store, "api", weir.ByIP(), ` + k.call(set) + ")\n"
	}
	return fmt.Sprintf(`	limiter, err := weir.New(store, weir.Options{
		MaxWait: %s,
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{%s}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	limit := limiter.Handler
`, duration(within), k.call(set))
}

func imports(names ...string) string {
	std := "import (\n"
	for i, name := range names {
		if strings.HasPrefix(name, "seed") {
			if !strings.HasPrefix(names[i-1], "seed") {
				std += "\n"
			}
			name = strings.Replace(name, "seed", "github.com/seed83679106/weir", 1)
		}
		std += "\t\"" + name + "\"\n"
	}
	return std + ")\n\n"
}

// program returns a Go program that serves HTTP under the limit.
func (k *kind) program(set *settings) string {
	std := []string{"fmt", "log", "net/http"}
	if strings.Contains(k.limiter(set), "time.") {
		std = append(std, "time")
	}
	return "package main\n\n" + imports(append(std, "seed", "seed/algorithms", "seed/memstore")...) + `func main() {
	store := memstore.New(memstore.Options{}) // redisstore.New counts for several processes
` + k.limiter(set) + `	http.Handle("/", limit(http.HandlerFunc(hello)))
	log.Fatal(http.ListenAndServe("localhost:8080", nil))
}

func hello(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "hello")
}
`
}

// test returns a Go test of the limit: what fits at once passes, and one more is refused.
func (k *kind) test(set *settings) string {
	std := []string{"net/http", "net/http/httptest", "testing", "testing/synctest"}
	if strings.Contains(k.call(set), "time.") {
		std = append(std, "time")
	}
	most := set.Quota
	if k.bucket != nil {
		most = set.burst()
	}
	return "package main\n\n" + imports(append(std, "seed", "seed/algorithms", "seed/memstore")...) + fmt.Sprintf(`func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while the test sends requests
		store := memstore.New(memstore.Options{})
		limit := weir.Middleware(store, "api", weir.ByIP(), %s)
		handler := limit(http.NotFoundHandler())
		get := func() int {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			return w.Code
		}
		for i := range %d {
			if code := get(); code != http.StatusNotFound {
				t.Fatalf("request %%d: got %%d, want it to pass", i+1, code)
			}
		}
		if code := get(); code != http.StatusTooManyRequests {
			t.Errorf("one more: got %%d, want 429", code)
		}
	})
}
`, k.call(set), most)
}

// yaml returns a file of rules with the limit.
func (k *kind) yaml(set *settings) string {
	s := ""
	if k.within(set) > 0 {
		s = "# Requests wait only with a MaxWait, which is in Options.Limiter of package config.\n"
	}
	s += "limits:\n  - name: api\n    algorithm: " + k.name + "\n"
	if k.bucket != nil && set.burst() != set.Quota {
		s += fmt.Sprintf("    burst: %d\n", set.Burst)
	}
	period := strconv.FormatInt(set.Period, 10)
	if k.extra {
		period = "day"
	}
	return s + fmt.Sprintf("    config: [{limit: %d, period: %s}]\n", set.Quota, period)
}
