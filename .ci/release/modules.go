package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// stages are the modules that users install, by their directories. A module requires modules of
// earlier stages only.
var stages = [][]string{{"."}, {"contrib/weirchi", "contrib/weirgrpc", "ops/weirprom", "ops/weirotel"}, {"cmd/weir"}}

func modules() []string { return slices.Concat(stages...) }

// tag returns the tag by which the go command finds a module: https://go.dev/ref/mod#vcs-version.
func (r *release) tag(module string) string { return path.Join(module, r.version) }

// tagModules writes the requirements of each stage, commits and tags it.
func (r *release) tagModules() error {
	root, err := readModule(filepath.Join(r.clone, "go.mod"))
	if err != nil {
		return err
	}
	r.path = root.Module.Mod.Path
	for _, stage := range stages {
		for _, module := range stage {
			if err := r.require(module); err != nil {
				return err
			}
		}
		if err := r.commit("release: require " + r.version + " in " + strings.Join(stage, ", ")); err != nil {
			return err
		}
		for _, module := range stage {
			if err := command(r.clone, nil, "git", "tag", r.tag(module)); err != nil {
				return err
			}
			r.tags = append(r.tags, r.tag(module))
		}
	}
	return nil
}

// commit commits what has changed, if anything has. It uses the author and the time of the
// previous commit, so that a release has the same commits whenever and wherever it is made.
func (r *release) commit(subject string) error {
	changed, err := output(r.clone, nil, "git", "status", "--porcelain")
	if err != nil || changed == "" {
		return err
	}
	before, err := output(r.clone, nil, "git", "log", "-1", "--format=%cn%n%ce%n%cI")
	if err != nil {
		return err
	}
	var env []string
	for i, value := range strings.Split(before, "\n") {
		what := [...]string{"NAME", "EMAIL", "DATE"}[i]
		env = append(env, "GIT_AUTHOR_"+what+"="+value, "GIT_COMMITTER_"+what+"="+value)
	}
	return command(r.clone, env, "git", "commit", "-qam", subject)
}

// require makes a module require the version of this release of the modules that it replaces by
// a directory, and writes their checksums.
func (r *release) require(module string) error {
	name := filepath.Join(r.clone, module, "go.mod")
	f, err := readModule(name)
	if err != nil {
		return err
	}
	if len(f.Replace) == 0 {
		return nil
	}
	for _, replace := range slices.Clone(f.Replace) {
		old, by := replace.Old, replace.New.Path
		if !strings.HasPrefix(by, "../") {
			return fmt.Errorf("%s replaces %s by %s, which no user has", name, old.Path, by)
		}
		if err := f.DropReplace(old.Path, old.Version); err != nil {
			return err
		}
		if err := f.AddRequire(old.Path, r.version); err != nil {
			return err
		}
	}
	f.Cleanup()
	text, err := f.Format()
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return err
	}
	return command(filepath.Dir(name), r.goEnv(), "go", "mod", "tidy")
}

func readModule(name string) (*modfile.File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, text, nil)
}

// goEnv makes the go command find the modules of this release by the tags in the clone, as it
// will later find them by the tags in the public repository. It does not affect other
// modules.
func (r *release) goEnv() []string {
	return []string{
		"GOWORK=off",
		"GOFLAGS=-modcacherw",
		"GOMODCACHE=" + r.cache,
		"GOPRIVATE=" + r.path,
		"GOPROXY=" + upstream(),
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url." + r.clone + ".insteadOf",
		"GIT_CONFIG_VALUE_0=https://" + r.path,
	}
}

// upstream is a GOPROXY with the modules on this machine, followed by the usual proxies.
func upstream() string {
	cache, _ := output(".", nil, "go", "env", "GOMODCACHE")
	proxy, _ := output(".", nil, "go", "env", "GOPROXY")
	return "file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download")) + "," + proxy
}

// writeProxy downloads each module of the release, as the first user will, and keeps the
// downloaded files, so that out/proxy is a GOPROXY for the release before it is published.
func (r *release) writeProxy() error {
	for _, module := range modules() {
		if err := command(r.out, r.goEnv(), "go", "mod", "download", path.Join(r.path, module)+"@"+r.version); err != nil {
			return err
		}
	}
	from := filepath.Join(r.cache, "cache", "download", filepath.FromSlash(path.Dir(r.path)))
	return os.CopyFS(filepath.Join(r.out, "proxy", filepath.FromSlash(path.Dir(r.path))), os.DirFS(from))
}
