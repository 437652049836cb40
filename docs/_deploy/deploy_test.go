// Package deploy checks the files with which cmd/weir is deployed: by the parser of whoever reads
// them, and by running weir serve as they say.
package deploy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/seed83679106/weir/internal/test/redistest"
)

const dir = "../../cmd/weir"

var binary string // of cmd/weir

func TestMain(m *testing.M) {
	temp, err := os.MkdirTemp("", "weir")
	if err == nil {
		binary = filepath.Join(temp, "weir")
		build := exec.Command("go", "build", "-o", binary, ".")
		build.Dir, build.Env, build.Stderr = dir, append(os.Environ(), "GOWORK=off"), os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build of cmd/weir:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(temp)
	os.Exit(code)
}

// A deployment is what a file says of the process.
type deployment struct {
	args  []string
	env   []string
	paths map[string]string // of files in the deployment, and where the test has them
	redis string            // the address in the deployment; "" if it has none
}

// start runs weir serve as d says, except that it listens on ports of its own, and returns the
// URL of -auth-addr.
func (d *deployment) start(t *testing.T) string {
	replace := []string{":8080", "127.0.0.1:0", ":9090", "127.0.0.1:0", ":9091", "127.0.0.1:0"}
	for from, to := range d.paths {
		replace = append(replace, from, to)
	}
	if d.redis != "" {
		replace = append(replace, d.redis, redistest.Server(t).Addr())
		d.env = append(d.env, "WEIR_REDIS_TIMEOUT=400ms") // a busy machine exceeds 50 ms, which is a warning; so is more than 500 ms
	}
	r := strings.NewReplacer(replace...)
	c := exec.Command(binary)
	for _, arg := range d.args {
		c.Args = append(c.Args, r.Replace(arg))
	}
	for _, variable := range append(d.env, "WEIR_AUTH_ADDR=:9090") {
		c.Env = append(c.Env, r.Replace(variable))
	}
	log, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var read bytes.Buffer
	t.Cleanup(func() {
		c.Process.Signal(os.Interrupt)
		io.Copy(&read, log)
		if err := c.Wait(); err != nil {
			t.Errorf("weir serve ended with %v\n%s", err, read.String())
		}
		if bytes.Contains(read.Bytes(), []byte(`"level":"WARN"`)) {
			t.Errorf("weir serve warns of its configuration:\n%s", read.String())
		}
	})
	for b := make([]byte, 1024); ; {
		n, err := log.Read(b)
		read.Write(b[:n])
		if m := regexp.MustCompile(`auth-addr:(127\.0\.0\.1:\d+)`).FindSubmatch(read.Bytes()); m != nil {
			return "http://" + string(m[1])
		}
		if err != nil {
			t.Fatalf("weir serve ended: %s", read.String())
		}
	}
}

// check wants 200 from a path of the service within a minute, as probes ask again too.
func check(t *testing.T, url string) {
	t.Helper()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	answer := ""
	for range 600 {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return
		}
		answer = fmt.Sprintf("%d %q", resp.StatusCode, body)
		<-again.C
	}
	t.Errorf("%s answers %s, want 200", url, answer)
}

// imageEnv returns the environment in the image.
func imageEnv(t *testing.T) []string {
	text, err := os.ReadFile(filepath.Join(dir, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(regexp.MustCompile(`(?m)^ENV (.*)$`).FindSubmatch(text)[1]))
}

func TestSystemd(t *testing.T) {
	const installed = "/usr/local/bin/weir"
	unit, err := os.ReadFile(filepath.Join(dir, "weir.service"))
	if err != nil {
		t.Fatal(err)
	}
	start := regexp.MustCompile(`(?m)^ExecStart=` + installed + ` (.*)$`).FindSubmatch(unit)
	if start == nil {
		t.Fatal("the unit starts no " + installed)
	}
	d := deployment{
		args:  strings.Fields(string(start[1])),
		paths: map[string]string{"/etc/weir/limits.yaml": filepath.Join(dir, "limits.yaml")},
	}
	url := d.start(t)
	check(t, url+"/readyz")

	here := filepath.Join(t.TempDir(), "weir.service")
	if err := os.WriteFile(here, bytes.ReplaceAll(unit, []byte(installed), []byte(binary)), 0o644); err != nil {
		t.Fatal(err)
	}
	require(t, "systemd-analyze")
	if b, err := exec.Command("systemd-analyze", "verify", "--man=no", here).CombinedOutput(); err != nil || len(b) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, b)
	}
	b, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=20", here).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, b)
	}
}

func TestCompose(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{filepath.Join(dir, "compose.yaml")}, cli.WithEnv([]string{"REDIS_PASSWORD=verysecret"}))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	weir, redis := project.Services["weir"], project.Services["redis"]
	if value := weir.Environment["WEIR_REPLICAS"]; value != nil {
		t.Errorf("WEIR_REPLICAS is %s, want none: replicas count each other, however many there are", *value)
	}
	if _, err := os.Stat(filepath.Join(weir.Build.Context, weir.Build.Dockerfile)); err != nil {
		t.Error(err)
	}
	d := deployment{args: []string{"serve"}, env: imageEnv(t), redis: "redis:6379", paths: map[string]string{}}
	for name, value := range weir.Environment {
		if name != "WEIR_REDIS_PASSWORD" { // the Redis of the test has none
			d.env = append(d.env, name+"="+*value)
		} else if *value != "verysecret" {
			t.Errorf("weir has the password %q", *value)
		}
	}
	for _, v := range weir.Volumes {
		d.paths[v.Target] = v.Source
	}
	check(t, d.start(t)+"/readyz")
	n := len(redis.Command) - 2
	if last := redis.Command[n:]; last[0] != "--requirepass" || last[1] != "verysecret" {
		t.Errorf("Redis has no password: %q", last)
	}
	redistest.Server(t, redis.Command[1:n]...) // fails if redis-server does not know an argument
}

func TestKubernetes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(dir, "kubernetes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var (
		limits  corev1.ConfigMap
		secret  corev1.Secret
		weir    appsv1.Deployment
		service corev1.Service
		policy  networkingv1.NetworkPolicy
		budget  policyv1.PodDisruptionBudget
	)
	objects := strings.Split(string(text), "\n---\n")
	for i, into := range []any{&limits, &secret, &weir, &service, &policy, &budget} {
		if err := yaml.UnmarshalStrict([]byte(objects[i]), into); err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
	}
	labels := weir.Spec.Template.Labels["app"]
	for _, selected := range []string{weir.Spec.Selector.MatchLabels["app"], service.Spec.Selector["app"], budget.Spec.Selector.MatchLabels["app"], policy.Spec.PodSelector.MatchLabels["app"]} {
		if selected != labels {
			t.Errorf("a selector wants app %q, and the pods have %q", selected, labels)
		}
	}
	if in := policy.Spec.Ingress; len(in) != 1 || len(in[0].From) == 0 || in[0].Ports[0].Port.StrVal != weir.Spec.Template.Spec.Containers[0].Ports[0].Name {
		t.Errorf("the policy lets in %+v, want named pods, and only to the port of /auth", in)
	}
	pod := weir.Spec.Template.Spec
	c := pod.Containers[0]
	d := deployment{args: []string{"serve"}, env: imageEnv(t), redis: "redis:6379", paths: map[string]string{}}
	for _, v := range c.Env {
		if v.Name == "WEIR_REPLICAS" {
			t.Errorf("WEIR_REPLICAS is %s, want none: replicas count each other, however many there are", v.Value)
		}
		if v.Name != "WEIR_REDIS_PASSWORD_FILE" { // the Redis of the test has none
			d.env = append(d.env, v.Name+"="+v.Value)
		} else if v.Value != mount(t, c, "secret")+"/redis-password" || secret.StringData["redis-password"] == "" {
			t.Errorf("the password is in %s, where no secret is", v.Value)
		}
	}
	mounted := t.TempDir()
	for name, text := range limits.Data {
		if err := os.WriteFile(filepath.Join(mounted, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d.paths[mount(t, c, "limits")] = mounted
	url := d.start(t)
	for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
		if probe.HTTPGet.Port.StrVal != c.Ports[0].Name || c.Ports[0].ContainerPort != 9090 {
			t.Errorf("a probe asks port %v, want that of -auth-addr", probe.HTTPGet.Port)
		}
		check(t, url+probe.HTTPGet.Path)
	}
}

// mount returns where a container has a volume.
func mount(t *testing.T, c corev1.Container, volume string) string {
	for _, m := range c.VolumeMounts {
		if m.Name == volume {
			return m.MountPath
		}
	}
	t.Fatalf("the container has no volume %s", volume)
	return ""
}

// require skips a test without a program, or fails it if the environment variable CI is set.
func require(t *testing.T, program string) {
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal(program + " is missing")
	}
	t.Skip(program + " is missing")
}
