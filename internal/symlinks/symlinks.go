// Package symlinks finds symbolic links that leave a directory.
package symlinks

import "path/filepath"

// LeadOut reports whether symbolic links lead from name, which is below the directory dir, to
// a file that is not below it. It reports true if it cannot find out.
func LeadOut(dir, name string) bool {
	below, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return true
	}
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return true
	}
	rest, err := filepath.Rel(below, target)
	return err != nil || !filepath.IsLocal(rest)
}
