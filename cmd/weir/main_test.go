package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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

	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestRun: each command line gets the right exit status and prints the right text.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	good := writeFile(t, filepath.Join(dir, "good.yaml"), "limits: [{name: a, config: [{limit: 1, period: 1}]}]")
	bad := writeFile(t, filepath.Join(dir, "bad.yaml"), "limits:\n- {name: a, config: [{limt: 1, period: 1}]}\n- {name: b}\n")
	differ := writeFile(t, filepath.Join(dir, "differ.yaml"), "limits:\n- {name: a, config: [{limit: 1, period: 1}]}\n- {name: b, headers: ietf, config: [{limit: 1, period: 1}]}")
	for _, tt := range []struct {
		args           string
		status         int
		stdout, stderr string // texts that the output must contain
	}{
		{"check " + good, 0, "good.yaml: ok\n", ""},
		{"check " + bad, 1, "bad.yaml:2:23: unknown field limt in a limit; did you mean limit?\n", ""},
		{"check " + bad, 1, "bad.yaml:3:3: a rule has no config", ""},
		{"check " + good + " " + bad, 1, "good.yaml: ok\n", ""},
		{"check " + differ, 1, "their headers differ", ""},
		{"check " + good + "x", 1, "open " + good + "x: ", ""},
		{"check -envoy envoy-limits.yaml", 0, "envoy-limits.yaml: ok\n", ""},
		{"check -envoy " + bad, 1, "bad.yaml:1: unknown field \"limits\"", ""},
		{"check", 2, "", "usage:"},
		{"check -x", 2, "", "-x"},
		{"version", 0, "weir ", ""},
		{"help", 0, "weir serve", ""},
		{"serve -help", 0, "", "-redis-addrs"},
		{"", 2, "", "usage:"},
		{"serv", 2, "", `unknown command "serv"`},
		{"serve", 2, "", "-limits, -envoy-config or -envoy-xds is missing"},
		{"serve -limits x -x", 2, "", "-x"},
		{"serve x", 2, "", "no arguments"},
		{"serve -limits x -upstream localhost", 2, "", "want a URL such as"},
		{"serve -limits x -upstream http://localhost:8080", 2, "", "is -addr of weir itself"},
		{"serve -limits x -upstream http://127.0.0.1:8080/api", 2, "", "is -addr of weir itself"},
		{"serve -limits x -upstream http://example.com -addr tls://example.com:80", 2, "", "is -addr of weir itself"},
		{"serve -limits x -upstream http://[::1]:9090", 2, "", "is -auth-addr of weir itself"},
		{"serve -limits x -admin-token short", 2, "", "-admin-token has 5 bytes; want at least 16"},
		{"serve -limits x -key-secret short", 2, "", "-key-secret has 5 bytes; want at least 16"},
		{"serve -limits x -auth-addr=", 2, "", `-auth-addr is ""; want an address`},
		{"serve -limits x -auth-addr tls://", 2, "", `-auth-addr is "tls://"; want an address`},
		{"serve -limits x -admin-addr= -admin-token 0123456789abcdef", 2, "", `-admin-addr is ""; want an address`},
		{"serve -limits x -upstream http://me:secret@localhost:1", 2, "", "-upstream has a user, a query or a fragment"},
		{"serve -limits x -upstream http://localhost:1/?a=b", 2, "", "-upstream has a user, a query or a fragment"},
		{"serve -limits x -shutdown-delay -5s", 2, "", "-shutdown-delay is -5s; want at least 0"},
		{"serve -limits x -shutdown-timeout -5s", 2, "", "-shutdown-timeout is -5s; want at least 0"},
		{"serve -limits x -redis-ready-after -5s", 2, "", "-redis-ready-after is -5s; want at least 0"},
		{"serve -limits x -replicas 3", 2, "", "-replicas needs -redis-addrs"},
		{"serve -limits x -redis-addrs redis://a:b@localhost:1/3 -redis-db 5", 2, "", "-redis-db and -redis-addrs have different values"},
		{"serve -limits x -redis-addrs redis://a:b@localhost:1/3 -redis-password c", 2, "", "-redis-password and -redis-addrs have different values"},
		{"serve -limits x -log-level warning", 2, "", `invalid value "warning" for flag -log-level: want debug, info, warn or error`},
		{"serve -limits x -redis-down closed", 2, "", "-redis-down closed needs -redis-addrs"},
		{"serve -limits x -addr tls://:1", 2, "", "-addr tls://:1 needs -tls-cert and -tls-key"},
		{"serve -limits x -tls-cert y", 2, "", "need each other"},
		{"serve -limits x -redis-down never", 2, "", "memory, open, closed"},
		{"serve -limits x -redis-pool-size 3", 2, "", "-redis-pool-size needs -redis-addrs"},
		{"serve -limits x -redis-tls-ca y", 2, "", "need -redis-tls"},
		{"serve -envoy-config x -admin-token 0123456789abcdef", 2, "", "need -limits"},
		{"serve -envoy-config x -envoy-rls tls://:1", 2, "", "-envoy-rls tls://:1 needs -tls-cert"},
		{"serve -limits x -replicas -1", 2, "", "-replicas is -1"},
		{"serve -limits x -read-timeout 0s", 2, "", "-read-timeout is 0s; want more than 0"},
		{"serve -limits x -log-refusals -1", 2, "", "-log-refusals is -1"},
		{"serve -limits x -max-keys 0", 2, "", "-max-keys is 0"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), strings.Fields(tt.args), nil, &stdout, &stderr)
		if status != tt.status || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("weir %s: got status %d, %q, %q; want %d, %q, %q", tt.args, status, stdout.String(), stderr.String(), tt.status, tt.stdout, tt.stderr)
		}
	}
}

// TestSecretsTrimmed: a secret in the environment with the line end of a file is an error, which does not
// contain it: another replica would have another secret, and no operator could send the token.
func TestSecretsTrimmed(t *testing.T) {
	for _, name := range []string{"key-secret", "admin-token"} {
		var o options
		err := o.parse([]string{"-limits", "x"}, []string{envName(name) + "=0123456789abcdef\n"}, &bytes.Buffer{})
		if err == nil || err.Error() != "-"+name+" begins or ends with white space; want a text without" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestMistakesInOrder: several errors of a command line are printed in the order of the
// flags, each time.
func TestMistakesInOrder(t *testing.T) {
	for range 20 {
		var o options
		err := o.parse(strings.Fields("-limits x -envoy-rls tls://:4 -admin-addr tls://:3 -auth-addr tls://:2 -addr tls://:1 -max-keys 0"), nil, &bytes.Buffer{})
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
	err := o.parse([]string{"-limits", "x", "-redis-db", "3"}, []string{
		"WEIR_LIMITS=y", "WEIR_REDIS_ADDRS=a:1,b:2", "WEIR_REDIS_DB=7", "WEIR_REDIS_PASSWORD=secret", "WEIR_REDIS_TIMEOUT=20ms",
		"WEIR_REDIS_POOL_FIFO=true", "WEIR_SHUTDOWN_DELAY=3s", "WEIR_LOG_LEVEL=debug", "WEIR_REDIS_MASTER_NAME=m"}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	u, err := o.redis.universal(nil)
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
		err := o.parse([]string{"-limits", "x"}, []string{variable + "=" + value, "WEIR_ADMIN_TOKEN=secret"}, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s is %q: ", variable, value)) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s=%s: got %v", variable, value, err)
		}
	}
}

// TestEnvironmentWanted: an error about the value of a flag or its environment variable says what to
// write.
func TestEnvironmentWanted(t *testing.T) {
	for variable, want := range map[string]string{
		"WEIR_REDIS_TIMEOUT=50": "a duration with its unit, such as 50ms", "WEIR_SHUTDOWN_TIMEOUT=50": "a duration with its unit, such as 50ms", "WEIR_REDIS_TLS=yes": "true or false", "WEIR_REPLICAS=3 ": "a whole number",
		"WEIR_MAX_KEYS=1e6": "a whole number", "WEIR_ENVOY_NEAR=80%": "a number", "WEIR_LOG_LEVEL=loud": "loud", "WEIR_REDIS_DOWN=never": "want memory, open, closed",
	} {
		flag := strings.ToLower(strings.ReplaceAll(strings.Replace(variable, "WEIR_", "-", 1), "_", "-"))
		for given, args := range map[string][2][]string{variable: {nil, {variable}}, flag: {{flag}, nil}} {
			var o options
			err := o.parse(append([]string{"-limits", "x"}, args[0]...), args[1], &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "parse error") {
				t.Errorf("%s: got %v, want a text with %q", given, err, want)
			}
		}
	}
}

// TestUnknownVariables: an environment variable that resembles the variable of a flag is an
// error, and another one that begins with WEIR_ is a warning. The variables that Kubernetes sets
// for services named weir and weir-redis are ignored. Texts name variables, never their values.
func TestUnknownVariables(t *testing.T) {
	for _, tt := range []struct{ variable, err, warning string }{
		{"WEIR_REDIS_ADRS=x", "WEIR_REDIS_ADRS sets no flag; did you mean WEIR_REDIS_ADDRS?", ""},
		{"WEIR_REDIS_ADDR=x", "did you mean WEIR_REDIS_ADDRS?", ""},
		{"WEIR_REDIS_ADDRESSES=x", "did you mean WEIR_REDIS_ADDRS?", ""},
		{"WEIR_REDIS_PASSWD=x", "did you mean WEIR_REDIS_PASSWORD?", ""},
		{"WEIR_LIMIT=x", "did you mean WEIR_LIMITS?", ""},
		{"WEIR_redis_addrs=x", "did you mean WEIR_REDIS_ADDRS?", ""},
		{"WEIR_REDIS_URL=x", "WEIR_REDIS_URL sets no flag; did you mean REDIS_URL?", ""},
		{"WEIR_REDIS_HOST=x", "WEIR_REDIS_HOST sets no flag; did you mean WEIR_REDIS_ADDRS?", ""},
		{"WEIR_REDIS_SERVER=x", "", "the environment variable WEIR_REDIS_SERVER sets no flag"},
		{"WEIR_VERSION=x", "", "the environment variable WEIR_VERSION sets no flag"},
		{"WEIRD=x", "", ""},
		{"WEIR_SERVICE_HOST=10.0.0.1", "", ""},
		{"WEIR_SERVICE_PORT=9090", "", ""},
		{"WEIR_SERVICE_PORT_AUTH=9090", "", ""},
		{"WEIR_PORT=tcp://10.0.0.1:9090", "", ""},
		{"WEIR_PORT_9090_TCP=tcp://10.0.0.1:9090", "", ""},
		{"WEIR_PORT_9090_TCP_PROTO=tcp", "", ""},
		{"WEIR_PORT_9090_TCP_ADDR=10.0.0.1", "", ""},
		{"WEIR_REDIS_PORT=tcp://10.0.0.1:6379", "", ""},
		{"WEIR_REDIS_SERVICE_HOST=10.0.0.1", "", ""},
		{"WEIR_PORT=9090", "", "the environment variable WEIR_PORT sets no flag"},
		{"WEIR_REDIS_TIMEOUT=1s", "", "-redis-timeout is 1s: as long may a request wait when Redis is silent, and nginx.conf allows it after 500 ms"},
		{`WEIR_ADMIN_TOKEN="0123456789abcdef"`, "", "the value of WEIR_ADMIN_TOKEN is in quotation marks, which belong to it; in a file for docker --env-file, omit them"},
		{`WEIR_REDIS_PREFIX='a:'`, "", "the value of WEIR_REDIS_PREFIX is in quotation marks, which belong to it; in a file for docker --env-file, omit them"},
	} {
		var o options
		err := fmt.Sprint(o.parse([]string{"-limits", "l"}, []string{"PATH=/bin", tt.variable}, &bytes.Buffer{}))
		if tt.err == "" && err != "<nil>" || !strings.Contains(err, tt.err) || strings.Join(o.warnings, "; ") != tt.warning {
			t.Errorf("%s: got error %s, warnings %q; want %q, %q", tt.variable, err, o.warnings, tt.err, tt.warning)
		}
	}
}

// TestSecrets: a secret on the command line is a warning. A file or the environment can set
// it instead. A file that is empty or missing is an error, and so is a file beside a value.
func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "token"), "0123456789abcdef\n")
	empty := writeFile(t, filepath.Join(dir, "empty"), "\n")
	const token = "0123456789abcdef"
	for _, tt := range []struct {
		args, variable string
		err, warning   string
	}{
		{"-admin-token " + token, "", "", "can read -admin-token on the command line; use WEIR_ADMIN_TOKEN or -admin-token-file"},
		{"", "WEIR_ADMIN_TOKEN=" + token, "", ""},
		{"-admin-token-file " + file, "", "", ""},
		{"", "WEIR_ADMIN_TOKEN_FILE=" + file, "", ""},
		{"-admin-token-file " + empty, "", "-admin-token-file: " + empty + " is empty", ""},
		{"-admin-token-file " + dir + "/none", "", "open " + dir + "/none: ", ""},
		{"-admin-token-file " + file, "WEIR_ADMIN_TOKEN=" + token, "-admin-token is set, too", ""},
	} {
		var o options
		err := fmt.Sprint(o.parse(strings.Fields("-limits l "+tt.args), []string{tt.variable}, &bytes.Buffer{}))
		if tt.err == "" && (err != "<nil>" || o.adminToken != token) || !strings.Contains(err, tt.err) || strings.Contains(err, token) ||
			!strings.Contains(strings.Join(o.warnings, "; "), tt.warning) || tt.warning == "" && o.warnings != nil {
			t.Errorf("%s %s: got token %q, error %s, warnings %q; want %q, %q", tt.args, tt.variable, o.adminToken, err, o.warnings, tt.err, tt.warning)
		}
	}
	var o options
	if err := o.parse(strings.Fields("-limits l -redis-addrs a:1 -redis-password-file "+file), nil, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if u, err := o.redis.universal(o.newLogger(new(bytes.Buffer))); err != nil || u.Password != token {
		t.Errorf("-redis-password-file: got the password %q, %v", u.Password, err)
	}
}

// TestLogDurations: durations are texts in both formats.
func TestLogDurations(t *testing.T) {
	for format, want := range map[string]string{"json": `"after":"1m2.5s"`, "text": "after=1m2.5s"} {
		synctest.Test(t, func(t *testing.T) {
			var o options
			var out bytes.Buffer
			if err := o.parse([]string{"-limits", "x", "-log-format", format}, nil, &out); err != nil {
				t.Fatal(err)
			}
			store := &sometimes{err: errors.New("down")}
			breaker := quota.Breaker(store, quota.BreakerOptions{Failures: 1, Logger: o.newLogger(&out)})
			breaker.Take(t.Context(), &quota.Transaction{Charges: probe})
			time.Sleep(62_512 * time.Millisecond)
			store.err = nil
			breaker.Take(t.Context(), &quota.Transaction{Charges: probe})
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: got %s, want %s", format, out.String(), want)
			}
		})
	}
}

type sometimes struct{ err error }

func (s *sometimes) Take(context.Context, *quota.Transaction) error { return s.err }

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

var update = flag.Bool("update", false, "write the tables of flags into FLAGS.md")

// flagTables are the tables of FLAGS.md, each with its flags in the order of the page. The
// last table gets the flags of the Redis client that the other tables lack.
var flagTables = []struct{ title, flags string }{
	{"The service", "limits upstream addr auth-addr admin-addr admin-token admin-token-file key-secret key-secret-file tls-cert tls-key header-timeout read-timeout body-pause idle-timeout max-keys log-level log-format log-refusals shutdown-delay shutdown-timeout"},
	{"Redis", "redis-addrs redis-down redis-ready-after replicas redis-timeout redis-prefix redis-send-time redis-lock-keys redis-username redis-password redis-password-file redis-db redis-is-cluster-mode " +
		"redis-master-name redis-sentinel-username redis-sentinel-password redis-sentinel-password-file redis-tls redis-tls-ca redis-tls-cert redis-tls-key redis-tls-server-name"},
	{"Envoy's rate limit filter", "envoy-config envoy-xds envoy-xds-node envoy-xds-ca envoy-xds-cert envoy-xds-key envoy-xds-server-name envoy-rls envoy-merge-domains envoy-over envoy-headers envoy-header-names envoy-metadata envoy-shadow envoy-quota envoy-near envoy-connection-age envoy-client-ca envoy-client-name"},
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
		text += "\n## " + table.title + "\n\n| flag | default | meaning |\n| --- | --- | --- |\n"
		for _, name := range names {
			if row[name] == "" || table.flags == "" && !strings.HasPrefix(name, "redis-") {
				t.Errorf("the flag %s does not exist, or flagTables lacks it", name)
			}
			text += row[name]
		}
	}
	return text + "\n"
}

// TestDocumented: the tables in FLAGS.md have all flags, with their defaults and help
// texts.
func TestDocumented(t *testing.T) {
	const path, begin, end = "FLAGS.md", "<!-- flags -->\n", "<!-- end -->\n"
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
		t.Errorf("the tables of %s are not those of the flags; go test -C cmd/weir . -run TestDocumented -update writes them. got\n%s\nwant\n%s", path, got, want)
	}
}

// TestSamples: the sample files of limits can be loaded. The samples for proxies name the default
// addresses and the paths of weir serve, and docs/serve.md links to them.
func TestSamples(t *testing.T) {
	if err := config.Check("limits.yaml", config.Options{}); err != nil {
		t.Error(err)
	}
	for file, want := range map[string]string{
		"nginx.conf": "server 127.0.0.1:9090 max_fails=0;", "Caddyfile": "forward_auth 127.0.0.1:9090 {", "traefik.yml": "http://127.0.0.1:9090/auth\n",
		"envoy-rls.yaml": "address: 127.0.0.1, port_value: 8081}", "envoy-limits.yaml": "domain: app\n",
		"envoy.yaml": "path_prefix: " + envoyPrefix + "\n", "Dockerfile": "WEIR_AUTH_ADDR=:9090",
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
	if _, err := checkFile("envoy-limits.yaml", true, false, true); err != nil {
		t.Error(err)
	}
	page, _ := os.ReadFile("../../docs/serve.md")
	for _, file := range []string{"nginx.conf", "Caddyfile", "traefik.yml", "envoy.yaml", "envoy-rls.yaml"} {
		if !strings.Contains(string(page), "(../cmd/weir/"+file+")") {
			t.Errorf("docs/serve.md has no link to %s", file)
		}
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
