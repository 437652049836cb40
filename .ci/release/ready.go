package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// ready returns what stops a release: an invalid version, uncommitted changes, an existing tag,
// or a changelog without a date for the version.
func (r *release) ready() error {
	if semver.Canonical(r.version) != r.version || r.version == "" {
		return fmt.Errorf("-version %q is not a version such as v0.1.0", r.version)
	}
	var errs []error
	if changed, err := output(r.repo, nil, "git", "status", "--porcelain"); err != nil || changed != "" {
		errs = append(errs, errors.Join(err, fmt.Errorf("changes are not committed, so they are not part of the release:\n%s", changed)))
	}
	for _, module := range modules() {
		tag := r.tag(module)
		if found, err := output(r.repo, nil, "git", "tag", "--list", tag); err != nil || found != "" {
			errs = append(errs, errors.Join(err, fmt.Errorf("the tag %s exists", tag)))
		}
	}
	changes, err := os.ReadFile(filepath.Join(r.repo, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	heading := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(strings.TrimPrefix(r.version, "v")) + `\] - (.*)$`).FindSubmatch(changes)
	if heading == nil {
		errs = append(errs, fmt.Errorf("CHANGELOG.md has no section for %s", r.version))
	} else if !regexp.MustCompile(`^\d{4}-\d\d-\d\d$`).Match(heading[1]) {
		errs = append(errs, fmt.Errorf("CHANGELOG.md has %q in place of the date of %s", heading[1], r.version))
	}
	return errors.Join(errs...)
}
