// Release makes a release of every module of this repository that users install.
//
//	go run -C .ci/release . -version v0.1.0 [-dry-run] [-out DIR] [-platforms linux/amd64,…]
//
// It works in a clone of HEAD. In the clone, it runs .ci/run, writes the requirements of each
// module without replace lines, commits and tags the modules in the order of their dependencies,
// and builds binaries, their bills of materials and licences, an image and checksums into DIR. Then
// it fetches the tags into this repository and prints what to push. With -dry-run, it does not run
// .ci/run, reports what would stop a release instead of stopping, and leaves this repository
// unchanged.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	var r release
	flag.StringVar(&r.version, "version", "", "the version, such as v0.1.0")
	flag.BoolVar(&r.dry, "dry-run", false, "change nothing in this repository")
	flag.StringVar(&r.platforms, "platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64", "for which there are binaries, as GOOS/GOARCH")
	flag.StringVar(&r.out, "out", "", "the directory of what is built; the default is a new temporary one")
	flag.Parse()
	if err := r.make(); err != nil {
		log.Fatal(err)
	}
}

// A release holds the settings of one run of this program.
type release struct {
	version   string
	dry       bool
	platforms string
	out       string // binaries, image, checksums, and a module proxy
	repo      string // the repository that is released
	clone     string // the clone in which the release is made
	cache     string // a separate module cache, because tags may move until they are pushed
	path      string // of the root module
	tags      []string
}

func (r *release) make() (err error) {
	if r.repo, err = output(".", nil, "git", "rev-parse", "--show-toplevel"); err != nil {
		return err
	}
	if r.out == "" {
		if r.out, err = os.MkdirTemp("", "release-"); err != nil {
			return err
		}
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o777); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "release-work-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r.clone, r.cache = filepath.Join(work, "weir"), filepath.Join(work, "mod")

	if err := r.ready(); err != nil {
		if !r.dry {
			return err
		}
		log.Printf("not ready:\n%v", err)
	}
	if err := command(r.repo, nil, "git", "clone", "-q", r.repo, r.clone); err != nil {
		return err
	}
	if !r.dry {
		if err := command(r.clone, []string{"CI=true"}, "bash", ".ci/run"); err != nil {
			return fmt.Errorf(".ci/run: %w", err)
		}
	}
	for _, step := range []func() error{r.tagModules, r.writeProxy, r.buildBinaries, r.writeBills, r.writeLicences, r.writeImage, r.writeSums} {
		if err := step(); err != nil {
			return err
		}
	}
	if r.dry {
		fmt.Printf("made in %s; nothing was tagged here\n", r.out)
		return nil
	}
	for _, tag := range r.tags {
		if err := command(r.repo, nil, "git", "fetch", "-q", r.clone, "tag", tag, "--no-tags"); err != nil {
			return err
		}
	}
	fmt.Printf("made in %s; publish it with\n\n%s\nand publish the draft that GitHub then makes, with the same files and their attestations\n", r.out, pushes(r.tags))
	return nil
}

// pushes returns the commands that push tags. The first tag, that of the root module, is pushed
// separately, because its push starts release.yml, and GitHub starts no workflow for a push of more
// than three tags:
// https://docs.github.com/en/actions/reference/workflows-and-actions/events-that-trigger-workflows#push.
func pushes(tags []string) string {
	return fmt.Sprintf("\tgit push origin %s\n\tgit push origin %s\n", tags[0], strings.Join(tags[1:], " "))
}

// command runs a program, whose output goes to standard error.
func command(dir string, env []string, name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Dir, c.Env, c.Stdout, c.Stderr = dir, append(os.Environ(), env...), os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}

// output returns what a program prints, without the space around it.
func output(dir string, env []string, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	b, err := c.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w\n%s", c, err, exit.Stderr)
	}
	return strings.TrimSpace(string(b)), err
}
