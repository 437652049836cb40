package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licencesFile is the name of the file with the licence texts of everything in the binaries.
const licencesFile = "LICENSES.txt"

// licenceName matches the names of files that licences require to be distributed with a
// binary.
var licenceName = regexp.MustCompile(`(?i)^(un)?(licen[cs]es?|copying|copyright|notice|patents|authors)([-._].*)?$`)

// writeLicences writes the licence texts of Weir, of Go, and of each module in a binary. A module
// without a licence text is an error.
func (r *release) writeLicences() error {
	versions := map[string]bool{} // such as golang.org/x/net@v0.57.0
	for _, platform := range strings.Split(r.platforms, ",") {
		info, err := buildinfo.ReadFile(r.binary(platform))
		if err != nil {
			return err
		}
		for _, m := range info.Deps {
			versions[m.Path+"@"+m.Version] = true
		}
	}
	var sorted []string
	for v := range versions {
		if !strings.HasPrefix(v, r.path) {
			sorted = append(sorted, v)
		}
	}
	slices.Sort(sorted)
	goroot, err := output(r.clone, r.goEnv(), "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	var all strings.Builder
	if err := appendLicences(&all, r.path, r.clone, false); err != nil {
		return err
	}
	if err := appendLicences(&all, "Go", goroot, false); err != nil {
		return err
	}
	for _, v := range sorted {
		text, err := output(r.clone, r.goEnv(), "go", "mod", "download", "-json", v)
		if err != nil {
			return err
		}
		var module struct{ Dir string }
		if err := json.Unmarshal([]byte(text), &module); err != nil {
			return err
		}
		if err := appendLicences(&all, v, module.Dir, true); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(r.out, licencesFile), []byte(all.String()), 0o644)
}

// appendLicences appends the licence texts in a directory and, if deep, in those below it.
func appendLicences(to *strings.Builder, module, dir string, deep bool) error {
	found := false
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name != dir && (!deep || e.Name() == "testdata" || strings.HasPrefix(e.Name(), ".")):
			return filepath.SkipDir
		case !e.Type().IsRegular() || !licenceName.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go"):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		found = true
		fmt.Fprintf(to, "==== %s: %s\n\n%s\n\n", module, filepath.ToSlash(rel), strings.TrimSpace(string(text)))
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%s has no licence text in %s", module, dir)
	}
	return err
}
