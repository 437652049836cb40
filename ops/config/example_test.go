package config_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing/fstest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/overrides"
)

// The routes of a program name rules, and the file defines them.
func Example() {
	rules, err := config.Open("testdata/good/published.yaml", memstore.New(memstore.Options{}), config.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	createToken := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "a token") })
	h := rules.Handler("auth.createToken")(createToken)

	for range 6 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/tokens", nil))
		fmt.Print(w.Code, " ")
	}
	// Output: 200 200 200 200 200 429
}

// A file may be embedded in the program, and may use keys and costs of the program.
func ExampleOpen() {
	files := fstest.MapFS{"rules.yaml": {Data: []byte(`
algorithm: token-bucket
limits:
  - name: chat
    key: user
    cost: prompt
    unit: tokens
    config: [{limit: 1000, period: 1m, burst: 4000}]
`)}}
	rules, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{
		FS:      files,
		Keys:    map[string]weir.KeyFunc{"user": weir.ByBasicAuthUser()},
		Costs:   map[string]func(*http.Request) int64{"prompt": func(r *http.Request) int64 { return r.ContentLength / 4 }},
		Limiter: weir.Options{Headers: headers.IETF},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range rules.Rules() {
		fmt.Println(r.Name, r.Limits)
	}
	// Output: chat [1000 per 1m0s, 4000 at once (token-bucket)]
}

// The error of Open has the errors of the file, each with its place.
func ExampleError() {
	files := fstest.MapFS{"rules.yaml": {Data: []byte(`limits:
  - name: api
    key: heder:X-Tenant
    config:
      - {limit: 600, perid: 600}
      - {limit: 0, period: 10}
`)}}
	_, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{FS: files})
	fmt.Println(err)

	var first *config.Error
	if errors.As(err, &first) {
		fmt.Println("begin in line", first.Line)
	}
	// Output:
	// rules.yaml:3:10: unknown key heder:X-Tenant; did you mean header?
	// rules.yaml:5:22: unknown field perid in a limit; did you mean period?
	// rules.yaml:6:17: limit is 0; want at least 1
	// begin in line 3
}

func ExampleFile_Reload() {
	files := fstest.MapFS{}
	write := func(text string) { files["rules.yaml"] = &fstest.MapFile{Data: []byte(text)} }

	write("limits: [{name: api, config: [{limit: 100, period: 1m}]}]")
	rules, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{FS: files})
	if err != nil {
		fmt.Println(err)
		return
	}
	write("limits: [{name: api, enforce: 25%, config: [{limit: 50, period: 1m}]}]")
	fmt.Println(rules.Reload())
	fmt.Println(len(rules.Changed()), "changes, version", rules.Version(), "unused", rules.Unused())
	if _, err = rules.HandlerOfAll(); err != nil { // uses all rules, and later also the rules that a reload adds
		fmt.Println(err)
	}
	fmt.Println("unused", rules.Unused())
	write("limits: [{name: api, config: [{limit: 50, perid: 1m}]}]")
	_, err = rules.Reload()
	loaded, failed := rules.Reloads()
	fmt.Println(err)
	fmt.Println(loaded, "loaded,", failed, "failed, version", rules.Version(), "of this minute", time.Since(rules.Loaded()) < time.Minute)
	// Output:
	// api: enforce: 100% → 25%
	// api: limit 1m (gcra): 100 per 1m → 50 per 1m <nil>
	// 2 changes, version c39af0626b7d unused [api]
	// unused []
	// rules.yaml:1:43: unknown field perid in a limit; did you mean period?
	// 1 loaded, 1 failed, version c39af0626b7d of this minute true
}

// A program may have a flag with which it only checks its file, for a pipeline that deploys
// the file.
func ExampleCheck() {
	files := fstest.MapFS{"rules.yaml": {Data: []byte("limits: [{name: api, config: [{limit: 0, period: 1m}]}]")}}
	if err := config.Check("rules.yaml", config.Options{FS: files}); err != nil {
		fmt.Println(err) // and os.Exit(1)
	}
	// Output: rules.yaml:1:39: limit is 0; want at least 1
}

// Watch runs in a goroutine until the server ends. It logs the changes that it loads, and
// the errors of a file that it does not load.
func ExampleFile_Watch() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(path, []byte("limits: [{name: api, config: [{limit: 100, period: 1m}]}]"), 0o644); err != nil {
		fmt.Println(err)
		return
	}
	rules, err := config.Open(path, memstore.New(memstore.Options{}), config.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, stop := context.WithCancel(context.Background())
	watched := make(chan error)
	go func() { watched <- rules.Watch(ctx) }()
	stop() // the server has ended
	fmt.Println(<-watched)
	// Output: context canceled
}

// With the schema, an editor can complete and check files of rules.
func ExampleSchema() {
	var schema struct{ Title string }
	if err := json.Unmarshal([]byte(config.Schema()), &schema); err != nil {
		fmt.Println(err)
	}
	fmt.Println(schema.Title)
	// Output: Rules of Weir
}

// Other handlers, such as those of package admin, can use the limiters and the proxies
// of a file.
func ExampleFile_Limiters() {
	rules, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{FS: fstest.MapFS{"rules.yaml": {Data: []byte(`
trusted-proxies: [10.0.0.0/8]
limits:
  - name: api
    config: [{limit: 100, period: 1m}]
`)}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := rules.Handler("api") // makes a limiter
	handler(http.NotFoundHandler())
	for _, limiter := range rules.Limiters() {
		fmt.Println(limiter.Rules()[0].Limits[0])
	}
	fmt.Println(rules.TrustedProxies())
	// Output:
	// 1m: 100 per 1m0s (gcra)
	// [10.0.0.0/8]
}

// A limit that is not in the file counts the same clients as the file does.
func ExampleFile_ByIP() {
	rules, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{FS: fstest.MapFS{"rules.yaml": {Data: []byte(`
trusted-proxies: [10.0.0.0/8]
limits: [{name: api, config: [{limit: 10, period: 60}]}]
`)}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	fmt.Println(rules.ByIP()(r))
	// Output: 192.0.2.7 true
}

// A program that has only the log of a server asks which rules it can try on that log.
func ExampleFile_Reads() {
	files := fstest.MapFS{"rules.yaml": {Data: []byte(`
limits:
  - name: tenant
    key: [{first-of: [header:X-Tenant, ip]}, method]
    cost: content-length
    config: [{limit: 1000000, period: 1m}]
`)}}
	rules, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{FS: files})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rules.Reads("tenant"))
	// Output: [header:X-Tenant ip method content-length]
}

// A program has an API key that looks like a hashed key. KeyOf hashes it, as the rule does, whereas EntryOf
// takes it for the hashed key that an operator has read in the logs.
func ExampleFile_KeyOf() {
	files := fstest.MapFS{"rules.yaml": {Data: []byte(`
limits: [{name: api, key: "hashed:header:X-Api-Key", config: [{limit: 100, period: 1m}]}]
`)}}
	secret := []byte("from your configuration")
	rules, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{FS: files, Secret: secret})
	if err != nil {
		fmt.Println(err)
		return
	}
	const apiKey = "_ONuPZSTye6rchhHid6-1Q"
	key, err := rules.KeyOf("api", apiKey)
	fmt.Println(key == weir.HashedKey(secret, apiKey), err)
	e, err := rules.EntryOf("api", overrides.Entry{Key: apiKey})
	fmt.Println(e.Key == apiKey, err)
	// Output:
	// true <nil>
	// true <nil>
}

// An operator types an API key. The rule counts it under its hash.
func ExampleFile_EntryOf() {
	files := fstest.MapFS{"rules.yaml": {Data: []byte(`
limits:
  - {name: api, key: "hashed:header:X-Api-Key", config: [{limit: 100, period: 1m}]}
  - {name: clients, key: ip, config: [{limit: 100, period: 1m}]}
`)}}
	secret := []byte("from your configuration")
	rules, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{FS: files, Secret: secret})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := rules.EntryOf("api", overrides.Entry{Key: "sk-alice"})
	fmt.Println(e.Key == weir.HashedKey(secret, "sk-alice"), err)
	_, err = rules.EntryOf("clients", overrides.Entry{Key: "alice"})
	fmt.Println(err)
	// Output:
	// true <nil>
	// config: "alice" is never the key of rule "clients": want an address such as 192.0.2.1 or a network such as 2001:db8::/64
}
