// Package remade notices Limiters and stores that a handler makes for each request. Such a
// store has forgotten what earlier requests have spent, so it limits nothing.
package remade

import (
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A Count counts how often handlers made something since a time, by a name. The zero Count is
// ready to use. It is a global of its package, because what is made for each request has
// nothing else in which a count could last.
type Count struct {
	mu     sync.Mutex
	warned bool
	made   map[string]*making
}

type making struct {
	since time.Time
	n     int
}

const (
	most      = 10 // within a minute
	mostNames = 64 // names that change with each request would fill the memory
)

// Again counts one more that a handler has made under a name. It returns true once: if handlers
// have made ten within a minute, and so seem to make one for each request.
func (c *Count) Again(name string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.warned {
		return false
	}
	m := c.made[name]
	if m == nil || now.Sub(m.since).Abs() > time.Minute {
		if len(c.made) >= mostNames {
			clear(c.made)
		}
		if c.made == nil {
			c.made = map[string]*making{}
		}
		m = &making{since: now}
		c.made[strings.Clone(name)] = m
	}
	m.n++
	c.warned = m.n == most
	return c.warned
}

// Callers reports whether a ServeHTTP is among the callers of the function that calls Callers:
// that of a server, of a router or of an http.HandlerFunc. Programs that make many Limiters when
// they start, and most tests, have none. purposely reports that a package of this module wants
// what it makes: config, which reloads a file, or admin.
func Callers() (handler, purposely bool) {
	var pcs [256]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for outside := false; ; {
		f, more := frames.Next()
		switch {
		case strings.HasSuffix(f.Function, ".ServeHTTP"):
			return true, false
		case outside:
		case strings.HasPrefix(f.Function, module+"/config."), strings.HasPrefix(f.Function, module+"/admin."):
			return false, true
		default:
			outside = !strings.HasPrefix(f.Function, module+".") && !strings.HasPrefix(f.Function, module+"/")
		}
		if !more {
			return false, false
		}
	}
}

// module is the path of the module.
var module = strings.TrimSuffix(reflect.TypeFor[Count]().PkgPath(), "/internal/remade")
