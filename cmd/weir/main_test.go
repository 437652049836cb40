package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/goccy/go-yaml"
	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/seed83679106/weir/config"
	"github.com/seed83679106/weir/redisstore"
)

// TestRun: each command line gets the right exit status and prints the right text.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	good := writeFile(t, filepath.Join(dir, "good.yaml"), "limits: [{name: a, config: [{limit: 1, period: 1}]}]")
	bad := writeFile(t, filepath.Join(dir, "bad.yaml"), "limits:\n- {name: a, config: [{limt: 1, period: 1}]}\n- {name: b}\n")
	for _, tt := range []struct {
		args           string
		status         int
		stdout, stderr string // texts that the output must contain
	}{
		{"check " + good, 0, "good.yaml: ok\n", ""},
		{"check " + bad, 1, "bad.yaml:2:23: unknown field limt in a limit; did you mean limit?\n", ""},
		{"check " + bad, 1, "bad.yaml:3:3: a rule has no config", ""},
		{"check " + good + " " + bad, 1, "good.yaml: ok\n", ""},
		{"check " + good + "x", 1, "no such file", ""},
		{"check -envoy envoy-limits.yaml", 0, "envoy-limits.yaml: ok\n", ""},
		{"check -envoy " + bad, 1, "bad.yaml:1: unknown field \"limits\"", ""},
		{"check", 2, "", "usage:"},
		{"check -x", 2, "", "-x"},
		{"version", 0, "weir ", ""},
		{"help", 0, "weir serve", ""},
		{"serve -help", 0, "", "-redis-addrs"},
		{"", 2, "", "usage:"},
		{"serv", 2, "", `unknown command "serv"`},
		{"serve", 2, "", "-limits or -envoy-config is missing"},
		{"serve -limits x -x", 2, "", "-x"},
		{"serve x", 2, "", "no arguments"},
		{"serve -limits x -upstream localhost", 2, "", "not a URL such as"},
		{"serve -limits x -admin-token short", 2, "", "has 5 bytes; want at least 16"},
		{"serve -limits x -addr tls://:1", 2, "", "-addr tls://:1 needs -tls-cert and -tls-key"},
		{"serve -limits x -tls-cert y", 2, "", "need each other"},
		{"serve -limits x -redis-down never", 2, "", "memory, open, closed"},
		{"serve -limits x -redis-pool-size 3", 2, "", "-redis-pool-size needs -redis-addrs"},
		{"serve -limits x -redis-tls-ca y", 2, "", "need -redis-tls"},
		{"serve -envoy-config x -admin-token 0123456789abcdef", 2, "", "need -limits"},
		{"serve -envoy-config x -envoy-rls tls://:1", 2, "", "-envoy-rls tls://:1 needs -tls-cert"},
		{"serve -limits x -replicas 0", 2, "", "-replicas is 0"},
		{"serve -limits x -max-keys 0", 2, "", "-max-keys is 0"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), strings.Fields(tt.args), environment(nil), &stdout, &stderr)
		if status != tt.status || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("weir %s: got status %d, %q, %q; want %d, %q, %q", tt.args, status, stdout.String(), stderr.String(), tt.status, tt.stdout, tt.stderr)
		}
	}
}

// TestMistakesInOrder: several mistakes of a command line are printed in the order of the
// flags, each time.
func TestMistakesInOrder(t *testing.T) {
	for range 20 {
		var o options
		err := o.parse(strings.Fields("-limits x -envoy-rls tls://:4 -admin-addr tls://:3 -auth-addr tls://:2 -addr tls://:1 -max-keys 0"), environment(nil), &bytes.Buffer{})
		const tls = " needs -tls-cert and -tls-key\n"
		const want = "-addr tls://:1" + tls + "-auth-addr tls://:2" + tls + "-admin-addr tls://:3" + tls + "-envoy-rls tls://:4" + tls + "-max-keys is 0; want at least 1"
		if err == nil || err.Error() != want {
			t.Fatalf("got %v, want %s", err, want)
		}
	}
}

// TestEnvironment: environment variables set flags, and the command line overrides them. An
// error names the variable, and contains no secret.
func TestEnvironment(t *testing.T) {
	var o options
	err := o.parse([]string{"-limits", "x", "-redis-db", "3"}, environment(map[string]string{
		"WEIR_LIMITS": "y", "WEIR_REDIS_ADDRS": "a:1,b:2", "WEIR_REDIS_DB": "7", "WEIR_REDIS_PASSWORD": "secret", "WEIR_REDIS_TIMEOUT": "20ms",
		"WEIR_REDIS_POOL_FIFO": "true", "WEIR_SHUTDOWN_DELAY": "3s", "WEIR_LOG_LEVEL": "debug", "WEIR_REDIS_MASTER_NAME": "m"}), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	u, err := o.redis.universal()
	if err != nil {
		t.Fatal(err)
	}
	want := redisstore.ClientOptions(20*time.Millisecond, "a:1", "b:2")
	want.DB, want.Password, want.PoolFIFO, want.MasterName = 3, "secret", true, "m"
	if !reflect.DeepEqual(u, want) {
		t.Errorf("got %+v, want %+v", u, want)
	}
	if o.limits != "x" || o.shutdownDelay != 3*time.Second || o.logLevel.String() != "DEBUG" {
		t.Errorf("got %+v", o)
	}
	for variable, value := range map[string]string{"WEIR_REDIS_DB": "x", "WEIR_REDIS_DOWN": "never", "WEIR_SHUTDOWN_TIMEOUT": "3"} {
		var o options
		err := o.parse([]string{"-limits", "x"}, environment(map[string]string{variable: value, "WEIR_ADMIN_TOKEN": "secret"}), &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s is %q: ", variable, value)) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s=%s: got %v", variable, value, err)
		}
	}
}

// TestEnvoySamples: the sample configurations for Envoy are valid by Envoy's own schema.
func TestEnvoySamples(t *testing.T) {
	for _, name := range []string{"envoy.yaml", "envoy-rls.yaml"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		var b bootstrap.Bootstrap
		if err := protojson.Unmarshal(data, &b); err != nil { // checks the content of an Any, too
			t.Errorf("%s: %v", name, err)
		} else if err := b.ValidateAll(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// notFlags are the fields of redis.UniversalOptions that no flag sets, with the reason.
var notFlags = map[string]string{
	"Addrs":                        "redis-addrs",
	"TLSConfig":                    "redis-tls, redis-tls-ca and others",
	"Dialer":                       "code",
	"OnConnect":                    "code",
	"CredentialsProvider":          "code",
	"CredentialsProviderContext":   "code",
	"StreamingCredentialsProvider": "code",
	"PushNotificationProcessor":    "code",
	"ClientSideCache":              "code; replies of scripts are not cached",
	"ClientSideCacheConfig":        "replies of scripts are not cached",
	"ClientSideCacheStrategy":      "replies of scripts are not cached",
	"MaintNotificationsConfig":     "redisstore.ClientOptions disables them",
	"AutoPipelineOptions":          "redisstore has a queue of its own",
	"ReadOnly":                     "decisions write",
	"RouteByLatency":               "decisions go to masters",
	"RouteRandomly":                "decisions go to masters",
	"DisableIndentity":             "deprecated",
	"UnstableResp3":                "deprecated",
}

// TestRedisFlags: every field of redis.UniversalOptions has a flag, or a reason in notFlags
// why it has none.
func TestRedisFlags(t *testing.T) {
	fields := reflect.TypeFor[redis.UniversalOptions]()
	offered := map[string]bool{}
	for _, c := range clientFields {
		offered[c.field] = true
	}
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if _, excused := notFlags[name]; excused == offered[name] {
			t.Errorf("redis.UniversalOptions.%s: has a flag: %v, is in notFlags: %v; want one of the two", name, offered[name], excused)
		}
	}
	for field, want := range map[string]string{"DB": "redis-db", "PoolFIFO": "redis-pool-fifo", "MinIdleConns": "redis-min-idle-conns", "IsClusterMode": "redis-is-cluster-mode"} {
		if got := flagOf(field); got != want {
			t.Errorf("the flag of %s is %s, want %s", field, got, want)
		}
	}
}

var update = flag.Bool("update", false, "write the tables of flags into docs/serve.md")

// flagTables are the tables of docs/serve.md, each with its flags in the order of the page. The
// last table gets the flags of the Redis client that the other tables lack.
var flagTables = []struct{ title, flags string }{
	{"The service", "limits upstream addr auth-addr admin-addr admin-token tls-cert tls-key max-keys log-level log-format shutdown-delay shutdown-timeout"},
	{"Redis", "redis-addrs redis-down replicas redis-timeout redis-prefix redis-username redis-password redis-db redis-is-cluster-mode " +
		"redis-master-name redis-sentinel-username redis-sentinel-password redis-tls redis-tls-ca redis-tls-cert redis-tls-key redis-tls-server-name"},
	{"Envoy's rate limit filter", "envoy-config envoy-rls envoy-merge-domains envoy-shadow envoy-headers envoy-metadata"},
	{"The connections to Redis", ""},
}

// flagRows returns the text of the tables in flagTables.
func flagRows(t *testing.T) string {
	var o options
	row := map[string]string{}
	var client []string // the flags of the last table, sorted by name
	o.flags().VisitAll(func(f *flag.Flag) {
		_, usage := flag.UnquoteUsage(f)
		value := f.DefValue
		if value != "" {
			value = "`" + value + "`"
		}
		row[f.Name] = fmt.Sprintf("| `-%s` | %s | %s |\n", f.Name, value, usage)
		client = append(client, f.Name)
	})
	for _, table := range flagTables {
		client = slices.DeleteFunc(client, func(name string) bool { return slices.Contains(strings.Fields(table.flags), name) })
	}
	text := ""
	for _, table := range flagTables {
		names := strings.Fields(table.flags)
		if table.flags == "" {
			names = client
		}
		text += "\n### " + table.title + "\n\n| flag | default | meaning |\n| --- | --- | --- |\n"
		for _, name := range names {
			if row[name] == "" || table.flags == "" && !strings.HasPrefix(name, "redis-") {
				t.Errorf("the flag %s does not exist, or flagTables lacks it", name)
			}
			text += row[name]
		}
	}
	return text + "\n"
}

// TestDocumented: the tables in docs/serve.md have all flags, with their defaults and help
// texts.
func TestDocumented(t *testing.T) {
	const path, begin, end = "../../docs/serve.md", "<!-- flags -->\n", "<!-- end -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no %q and %q", path, begin, end)
	}
	want := flagRows(t)
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if got != want {
		t.Errorf("the tables of %s are not those of the flags; go test ./cmd/weir -run TestDocumented -update writes them. got\n%s\nwant\n%s", path, got, want)
	}
}

// TestSamples: the sample files of limits can be loaded. The samples for proxies name the default
// addresses and the paths of weir serve.
func TestSamples(t *testing.T) {
	if err := config.Check("limits.yaml", config.Options{}); err != nil {
		t.Error(err)
	}
	for file, want := range map[string]string{
		"nginx.conf": "server 127.0.0.1:9090;", "Caddyfile": "forward_auth 127.0.0.1:9090 {", "traefik.yml": "http://127.0.0.1:9090/auth\n",
		"envoy-rls.yaml": "address: 127.0.0.1, port_value: 8081}", "envoy-limits.yaml": "domain: app\n",
		"ingress-nginx.yaml": ":9090/auth/ingress-nginx?refuse=403\n", "envoy.yaml": "path_prefix: " + envoyPrefix + "\n", "Dockerfile": "WEIR_AUTH_ADDR=:9090",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q", file, want)
		}
		if strings.HasSuffix(file, "ml") {
			if err := yaml.Unmarshal(text, new(any)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if err := checkFile("envoy-limits.yaml", true, false); err != nil {
		t.Error(err)
	}
	dockerfile, _ := os.ReadFile("Dockerfile")
	var o options
	for _, m := range regexp.MustCompile(`WEIR_\w+`).FindAllString(string(dockerfile), -1) {
		found := false
		o.flags().VisitAll(func(f *flag.Flag) { found = found || envName(f.Name) == m })
		if !found {
			t.Errorf("Dockerfile: no flag has the variable %s", m)
		}
	}
}
