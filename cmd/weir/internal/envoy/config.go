// Package envoy is a gRPC service for Envoy's rate limit filter,
// envoy.service.ratelimit.v3.RateLimitService. It takes the place of
// github.com/envoyproxy/ratelimit, here called Envoy's service: it reads the same files and makes
// the same decisions.
//
// Every hit counts, even if it is over the limit. Windows begin at whole multiples of their
// unit since 1970. The store only counts: its fixed windows have a quota above every limit, and
// this package compares the count with the limit.
package envoy

import (
	"strings"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Config holds the limits of the files of a directory.
type Config struct {
	domains map[string]*node
	limits  []*limit
	stats   map[[3]string]*stats // by labels

	Warnings []string // settings that are not applied, each with its file and line
}

// A node is a domain, or a descriptor of a file. Its children are the descriptors in it.
type node struct {
	children  map[string]*node // by name: key, or key_value
	wildcards []wildcard       // the children with an asterisk, in the order of the file
	limit     *limit           // nil if the descriptor has no limit
	shared    string           // with share_threshold: the pattern, which is counted in place of the values that match it
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

// A limit is a rate_limit of a file, or the field limit of a descriptor in a call.
type limit struct {
	proto     *ratelimit.RateLimitResponse_RateLimit // the limit in answers; calls share it, so it never changes
	unlimited bool
	shadow    bool
	quota     bool
	replaces  []string
	metadata  *structpb.Struct // of the descriptor; nil without metadata
	*stats
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
