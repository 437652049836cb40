// Package envoy is a gRPC service for Envoy's rate limit filter,
// envoy.service.ratelimit.v3.RateLimitService. The package replaces
// github.com/envoyproxy/ratelimit, here called Envoy's service: it reads the same files and makes
// the same decisions.
//
// Every hit counts, even if it exceeds the limit. Windows begin at whole multiples of their unit
// since 1970. The store is used only to count: its fixed windows have a quota larger than any
// limit, and this package compares the count with the limit.
package envoy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed83679106/weir/internal/configfile"
	"github.com/seed83679106/weir/quota"
)

// Config holds the limits in the files of a directory.
type Config struct {
	domains map[string]*node
	limits  []*limit

	Warnings []string // settings that are not applied, each with its file and line
}

// A node represents a domain, or a descriptor in a file. The children of a node are the descriptors
// nested in it.
type node struct {
	children  map[string]*node // by name: key, or key_value
	wildcards []wildcard       // the children with an asterisk, in the order of the file
	limit     *limit           // nil if the descriptor has no limit
	shared    string           // with share_threshold: the pattern; all values that match it share a count
}

func newNode() *node { return &node{children: map[string]*node{}} }

// A wildcard is a child whose name has asterisks. Each asterisk stands for any text, even an
// empty one.
type wildcard struct {
	parts []string // the name, split at the asterisks
	*node
}

func (w *wildcard) matches(s string) bool {
	first, last := w.parts[0], w.parts[len(w.parts)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range w.parts[1 : len(w.parts)-1] {
		_, after, ok := strings.Cut(s, part)
		if !ok {
			return false
		}
		s = after
	}
	return true
}

// A limit is read from a rate_limit in a file, or from the limit field of a descriptor in a call.
type limit struct {
	proto     *ratelimit.RateLimitResponse_RateLimit // the limit in answers; it never changes, because calls share it
	unlimited bool
	shadow    bool
	quota     bool
	replaces  []string
	metadata  *structpb.Struct // of the descriptor; nil without metadata
	own       *quota.Limit     // the limit with an algorithm of Weir; nil if every hit counts, in fixed windows, as in Envoy's service
	labels    [3]string        // of its metrics
	*stats                     // nil before the limit is in force
}

// periods are the lengths of the units. A month has 30 days and a year has 365 days, as in
// Envoy's service.
var periods = map[ratelimit.RateLimitResponse_RateLimit_Unit]time.Duration{
	ratelimit.RateLimitResponse_RateLimit_SECOND: time.Second,
	ratelimit.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	ratelimit.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	ratelimit.RateLimitResponse_RateLimit_DAY:    24 * time.Hour,
	ratelimit.RateLimitResponse_RateLimit_WEEK:   7 * 24 * time.Hour,
	ratelimit.RateLimitResponse_RateLimit_MONTH:  30 * 24 * time.Hour,
	ratelimit.RateLimitResponse_RateLimit_YEAR:   365 * 24 * time.Hour,
}

// maxSize is the size of the largest file, in bytes.
const maxSize = 4 << 20

// A file holds the path and the content of a file of limits.
type file struct {
	path    string
	data    []byte
	outside bool // a symbolic link that leads out of the directory
}

// readFiles returns the file at path. If path is a directory, readFiles returns the *.yaml and
// *.yml files in it, sorted by name, except files whose names begin with a dot.
func readFiles(path string) ([]file, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	paths := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		paths = nil
		for _, e := range entries { // sorted by name
			if ext := filepath.Ext(e.Name()); (ext == ".yaml" || ext == ".yml") && e.Name()[0] != '.' {
				paths = append(paths, filepath.Join(path, e.Name()))
			}
		}
	}
	if len(paths) == 0 { // for example while the directory is being replaced, which must not remove all limits
		return nil, fmt.Errorf("%s has no file *.yaml or *.yml", path)
	}
	var files []file
	for _, p := range paths {
		data, err := configfile.Read(p)
		if err != nil {
			return nil, err
		}
		files = append(files, file{p, data, info.IsDir() && configfile.LeadOut(path, p)})
	}
	return files, nil
}

// Load reads the files of a directory, or one file. The returned error lists the errors of all
// files, each with its file and line. If merge is true, several files may have descriptors of the
// same domain.
func Load(path string, merge bool) (*Config, error) {
	files, err := readFiles(path)
	if err != nil {
		return nil, err
	}
	return parse(files, merge)
}

// parse returns the limits of files.
func parse(files []file, merge bool) (*Config, error) {
	c := &Config{domains: map[string]*node{}}
	var errs []error
	for _, f := range files {
		r := reader{config: c, file: f, merge: merge}
		r.read()
		if f.outside && len(r.errs) > 0 { // anyone who can create a link could otherwise read files that only this process may read
			r.errs = []error{fmt.Errorf("%s: %d errors; their texts are not shown, because this path is a symbolic link that leads out of its directory", f.path, len(r.errs))}
		}
		errs = append(errs, r.errs...)
	}
	return c, errors.Join(errs...)
}
