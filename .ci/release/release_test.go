package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const version = "v0.1.0"

// TestStranger makes a dry run, and then does what a first user does, with an empty module cache
// and with a GOPROXY that has the release: go get, go run and go install.
func TestStranger(t *testing.T) {
	out := t.TempDir()
	r := release{version: version, dry: true, platforms: "linux/" + runtime.GOARCH, out: out}
	if err := r.make(); err != nil {
		t.Fatal(err)
	}
	t.Run("program", func(t *testing.T) { testProgram(t, out) })
	t.Run("install", func(t *testing.T) { testInstall(t, out) })
	t.Run("licences", func(t *testing.T) { testLicences(t, out) })
	t.Run("image", func(t *testing.T) { testImage(t, out) })
	t.Run("sums", func(t *testing.T) { testSums(t, out) })
}

// stranger returns the environment of somebody who has never seen this machine's modules.
func stranger(t *testing.T, out string) []string {
	home := t.TempDir()
	return []string{
		"GOPROXY=file://" + filepath.ToSlash(filepath.Join(out, "proxy")) + "," + upstream(),
		"GONOSUMDB=github.com/seed83679106/weir", // the checksum database learns of a release when it is published
		"GOMODCACHE=" + filepath.Join(home, "mod"), "GOPATH=" + home, "GOBIN=" + filepath.Join(home, "bin"),
		"GOFLAGS=-modcacherw -trimpath", "CGO_ENABLED=0", "GOWORK=off", // as in the dry run, which has compiled most of it
	}
}

const program = `package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/weirprom"
)

func main() {
	store := memstore.New(memstore.Options{})
	metrics := weirprom.New(store)
	prometheus.MustRegister(metrics)
	l, err := weir.New(store, weir.Options{
		Observe: metrics.Observe,
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
	})
	if err != nil {
		panic(err)
	}
	h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	for range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code)
	}
}
`

func testProgram(t *testing.T, out string) {
	dir, env := t.TempDir(), stranger(t, out)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mod", "init", "example.com/stranger"},
		{"get", "github.com/seed83679106/weir@" + version, "github.com/seed83679106/weir/ops/weirprom@" + version},
	} {
		if _, err := output(dir, env, "go", args...); err != nil {
			t.Fatal(err)
		}
	}
	got, err := output(dir, env, "go", "run", ".")
	if want := "200\n429"; err != nil || got != want {
		t.Errorf("the program printed %q (%v), want %q", got, err, want)
	}
}

// testInstall installs the service and has it refuse a request.
func testInstall(t *testing.T, out string) {
	env := stranger(t, out)
	if _, err := output(t.TempDir(), env, "go", "install", "github.com/seed83679106/weir/cmd/weir@"+version); err != nil {
		t.Fatal(err)
	}
	weir := filepath.Join(strings.TrimPrefix(env[4], "GOBIN="), "weir")
	if got, err := output(".", nil, weir, "version"); err != nil || !strings.HasPrefix(got, "weir "+version+" ") {
		t.Errorf("weir version printed %q (%v), want %q first", got, err, "weir "+version)
	}
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(limits, []byte("trusted-proxies: [127.0.0.0/8]\nlimits:\n  - name: api\n    key: global\n    config: [{limit: 1, period: 1h}]\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(weir, "serve", "-limits", limits, "-auth-addr", "127.0.0.1:0")
	stderr, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	ask, err := http.NewRequest("GET", "http://"+listening(t, stderr)+"/auth", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Method": "GET", "Uri": "/", "Host": "example.com", "For": "192.0.2.1"} {
		ask.Header.Set("X-Forwarded-"+name, value)
	}
	for _, want := range []int{200, 429} {
		resp, err := http.DefaultClient.Do(ask)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("the service answered %d, want %d", resp.StatusCode, want)
		}
	}
}

// testLicences: the texts of Weir, Go and each module of the bill of materials are there.
func testLicences(t *testing.T, out string) {
	text, err := os.ReadFile(filepath.Join(out, licencesFile))
	if err != nil {
		t.Fatal(err)
	}
	bill, err := os.ReadFile(filepath.Join(out, "weir-linux-"+runtime.GOARCH+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	modules := []string{"github.com/seed83679106/weir:", "Go:"}
	for _, m := range regexp.MustCompile(`"purl": "pkg:golang/([^?"]+@v[^?"]+)`).FindAllSubmatch(bill, -1) {
		if module := string(m[1]); !strings.Contains(module, "/weir") {
			modules = append(modules, module+":")
		}
	}
	if len(modules) < 20 {
		t.Errorf("the bill of materials has only %q", modules)
	}
	for _, m := range modules {
		if _, after, ok := strings.Cut(string(text), "==== "+m); !ok || !strings.Contains(after[:min(len(after), 12_000)], "opyright") {
			t.Errorf("%s has no licence text", m)
		}
	}
}

func testImage(t *testing.T, out string) {
	index, err := layout.ImageIndexFromPath(filepath.Join(out, "image"))
	if err == nil {
		err = validate.Index(index)
	}
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("the image has %v (%v), want one platform", manifest, err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil || config.Config.User != "65532:65532" {
		t.Errorf("the image runs as %q (%v), want a user without rights", config.Config.User, err)
	}
	runImage(t, image)
}

// runImage runs the service of the image in a root directory that has nothing but the image.
func runImage(t *testing.T, image v1.Image) {
	root := t.TempDir()
	files := mutate.Extract(image)
	defer files.Close()
	c := exec.Command("tar", "-x", "-C", root)
	c.Stdin = files
	if b, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	certificates, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if n := bytes.Count(certificates, []byte("BEGIN CERTIFICATE")); err != nil || n < 50 {
		t.Errorf("the image has the certificates of %d authorities (%v), want more", n, err)
	}
	if licences, err := os.ReadFile(filepath.Join(root, licencesFile)); err != nil || len(licences) == 0 {
		t.Errorf("the image has %d bytes of licences (%v), want some", len(licences), err)
	}
	got, err := output(".", []string{"ZONEINFO="}, filepath.Join(root, "weir"), "version")
	if err != nil || !strings.HasPrefix(got, "weir "+version+" ") {
		t.Errorf("the service of the image printed %q (%v), want its version %s", got, err, version)
	}
}

// testSums compares SHA256SUMS with the files, and the binary with one that is built in another
// directory.
func testSums(t *testing.T, out string) {
	sums, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	again := release{version: version, dry: true, platforms: "linux/" + runtime.GOARCH, out: t.TempDir()}
	if err := again.make(); err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(filepath.Join(again.out, "SHA256SUMS"))
	if err != nil || string(sums) != string(other) {
		t.Errorf("two runs made\n%s\nand\n%s (%v), want the same bytes", sums, other, err)
	}
	if n := strings.Count(string(sums), "\n"); n != 4 {
		t.Errorf("SHA256SUMS has %d files, want a binary, its bill of materials, the image and the licences\n%s", n, sums)
	}
	binary := "weir-linux-" + runtime.GOARCH
	bill, err := os.ReadFile(filepath.Join(out, binary+".cdx.json"))
	if hash, _, ok := strings.Cut(string(sums), "  "+binary+"\n"); err != nil || !ok || !strings.Contains(string(bill), hash[len(hash)-64:]) {
		t.Errorf("the bill of materials lacks the hash of its binary (%v):\n%s", err, bill)
	}
	if std := "pkg:golang/stdlib@" + strings.TrimPrefix(runtime.Version(), "go"); !strings.Contains(string(bill), std) {
		t.Errorf("the bill of materials lacks %s:\n%s", std, bill)
	}
}

// TestPushes runs the commands that a release prints. The tag of the root module, for which the workflow
// runs, must be pushed with at most two others.
func TestPushes(t *testing.T) {
	r := release{version: version}
	var tags []string
	for _, module := range modules() {
		tags = append(tags, r.tag(module))
	}
	repo, origin := t.TempDir(), t.TempDir()
	script := "git init -q --bare " + origin + "\ngit init -q\ngit remote add origin " + origin +
		"\ngit -c user.name=test -c user.email=test@localhost commit -q --allow-empty -m first\nfor tag in " + strings.Join(tags, " ") + "; do git tag $tag; done\n"
	if _, err := output(repo, nil, "sh", "-ec", script+pushes(tags)); err != nil {
		t.Fatal(err)
	}
	if pushed, err := output(origin, nil, "git", "tag"); err != nil || len(strings.Fields(pushed)) != len(tags) {
		t.Errorf("pushed are %q (%v), want %q", pushed, err, tags)
	}
	for line := range strings.Lines(pushes(tags)) {
		if names := strings.Fields(line)[3:]; slices.Contains(names, version) && len(names) > 3 {
			t.Errorf("GitHub would run nothing for %s", line)
		}
	}
}

// TestReady makes a repository wrong in each way that stops a release.
func TestReady(t *testing.T) {
	repo := t.TempDir()
	write := func(changelog string) {
		if err := os.WriteFile(filepath.Join(repo, "CHANGELOG.md"), []byte(changelog), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	git := func(args ...string) {
		if _, err := output(repo, nil, "git", append([]string{"-c", "user.name=test", "-c", "user.email=test@localhost"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "-q")
	write("## [0.1.0] - 2026-11-25\n")
	git("add", ".")
	git("commit", "-qm", "first")
	for _, test := range []struct {
		version string
		break_  func()
		want    string // "" if nothing stops the release
	}{
		{"v0.1.0", func() {}, ""},
		{"0.1.0", func() {}, "is not a version"},
		{"v0.1", func() {}, "is not a version"},
		{"", func() {}, "is not a version"},
		{"v0.2.0", func() {}, "has no section for v0.2.0"},
		{"v0.1.0", func() { write("## [0.1.0] - Unreleased\n") }, "are not committed"},
		{"v0.1.0", func() { git("commit", "-qam", "second") }, `"Unreleased" in place of the date`},
		{"v0.1.0", func() { git("tag", "cmd/weir/v0.1.0") }, "the tag cmd/weir/v0.1.0 exists"},
	} {
		test.break_()
		r := release{version: test.version, repo: repo}
		switch err := r.ready(); {
		case test.want == "" && err != nil:
			t.Errorf("%s: got %v, want no error", test.version, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %v, want %q", test.version, err, test.want)
		}
	}
}

// TestDockerfile compares the image of the Dockerfile with that of a release.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../cmd/weir/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	base := regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllSubmatch(text, -1)
	if len(base) != 2 || string(base[1][1]) != "scratch" {
		t.Errorf("the Dockerfile has stages from %s, want the second from scratch", base)
	}
	c := imageConfig()
	lines := append([]string{
		"USER " + c.User,
		`ENTRYPOINT ["` + strings.Join(c.Entrypoint, `", "`) + `"]`,
		`CMD ["` + strings.Join(c.Cmd, `", "`) + `"]`,
		"-tags=timetzdata",
		"/etc/ssl/certs/ca-certificates.crt",
	}, c.Env...)
	for port := range c.ExposedPorts {
		lines = append(lines, strings.TrimSuffix(port, "/tcp"))
	}
	for _, want := range lines {
		if !strings.Contains(string(text), want) {
			t.Errorf("the Dockerfile lacks %s, which the image of a release has", want)
		}
	}
}

// TestImages: each image and action in the files of this repository is pinned, so that nobody can replace it
// under its tag, except these images, whose digests are not known, and Weir itself.
func TestImages(t *testing.T) {
	unpinned := []string{"scratch", "weir", "weir:v0.1.0", "redis:6.2.20", "docker.dragonflydb.io/dragonflydb/dragonfly:v1.40.2",
		"apache/kvrocks:2.16.0", "ghcr.io/microsoft/garnet:1.0.84"}
	lines, err := output("../..", nil, "git", "grep", "-hE", `^(FROM|[ -]+(image|uses):) [^$]`, "--", "*.yml", "*.yaml", "*Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`@(sha256:[0-9a-f]{64}|[0-9a-f]{40})$`)
	found := 0
	for _, m := range regexp.MustCompile(`(?m)(?:FROM|image:|uses:) (\S+)`).FindAllStringSubmatch(lines, -1) {
		if found++; !pinned.MatchString(m[1]) && !slices.Contains(unpinned, m[1]) {
			t.Errorf("%s has neither a digest nor a commit", m[1])
		}
	}
	if found < 20 {
		t.Errorf("found %d images and actions, want more", found)
	}
}

// TestModules fails if a module that others import is left out of the release: one that
// neither tests nor examples have.
func TestModules(t *testing.T) {
	list, err := output("../..", nil, "git", "ls-files", "*go.mod")
	if err != nil {
		t.Fatal(err)
	}
	released := map[string]bool{}
	for _, module := range modules() {
		released[module] = true
	}
	for _, name := range strings.Fields(list) {
		dir := filepath.ToSlash(filepath.Dir(name))
		internal := strings.HasPrefix(dir, "_") || strings.HasPrefix(dir, "docs/") || strings.HasPrefix(dir, "internal/") || strings.HasPrefix(dir, ".ci/")
		if released[dir] == internal {
			t.Errorf("%s is released: %t, and for this repository only: %t", dir, released[dir], internal)
		}
	}
}

var authAddr = regexp.MustCompile(`auth-addr:(127\.0\.0\.1:\d+)`)

// listening reads the log of the service until it names the address for forward auth.
func listening(t *testing.T, log io.Reader) string {
	var read bytes.Buffer
	for b := make([]byte, 1024); ; {
		n, err := log.Read(b)
		read.Write(b[:n])
		if m := authAddr.FindStringSubmatch(read.String()); m != nil {
			go io.Copy(io.Discard, log)
			return m[1]
		}
		if err != nil {
			t.Fatalf("the service ended: %v\n%s", err, read.String())
		}
	}
}
