package watch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// warnings remembers the warnings about probable misconfigurations: those of level Warn or above
// with the attribute "likely" or "fix". Every package of this module reports probable
// misconfigurations in this way.
type warnings struct {
	mu   sync.Mutex
	list []Warning
}

// varying are the attributes that differ from line to line about one problem, as does "unlogged".
var varying = []string{"addr", "behind", "bytes", "evicted"}

// mostWarnings is how many different warnings are remembered.
const mostWarnings = 50

// A Warning is a warning about a probable misconfiguration.
type Warning struct {
	At   time.Time // when it was last logged
	Rule string    // its attribute "rule", or ""
	Text string    // the message and the other attributes, as sentences

	same string // what it has in common with later lines about the same problem
}

// Warnings returns the warnings of the last d, the newest first. Warnings that differ at most in an
// address or a measured value are returned once, and only the 50 newest are remembered.
func (w *warnings) Warnings(d time.Duration) []Warning {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(w.list), func(k Warning) bool { return time.Since(k.At) > d })
	slices.Reverse(list)
	return list
}

// LogHandler returns a Handler that forwards each record to next, and remembers the records about
// probable misconfigurations. Use a Logger with this Handler as weir.Options.Logger and wherever
// else a Logger is accepted. Key functions have no Logger option and log to slog.Default().
func (w *warnings) LogHandler(next slog.Handler) slog.Handler { return &warningHandler{next, nil, w} }

type warningHandler struct {
	next  slog.Handler
	attrs []slog.Attr // of WithAttrs
	w     *warnings
}

func (h *warningHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.next.Enabled(ctx, level)
}

func (h *warningHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.keep(&r)
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

func (h *warningHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &warningHandler{h.next.WithAttrs(attrs), slices.Concat(h.attrs, attrs), h.w}
}

func (h *warningHandler) WithGroup(name string) slog.Handler {
	return &warningHandler{h.next.WithGroup(name), h.attrs, h.w}
}

// keep remembers a record if it is about a probable misconfiguration.
func (h *warningHandler) keep(r *slog.Record) {
	var details, same, advice []string
	found := false
	k := Warning{At: time.Now()}
	add := func(a slog.Attr) bool {
		found = found || a.Key == "likely" || a.Key == "fix"
		switch a.Key {
		case "rule":
			k.Rule = a.Value.String()
		case "effect":
			advice = append([]string{a.Value.String()}, advice...)
		case "likely":
			advice = append(advice, "likely: "+a.Value.String())
		case "fix":
			advice = append(advice, "to fix it, "+a.Value.String())
		case "unlogged":
		default:
			details = append(details, fmt.Sprintf("%s %s", a.Key, a.Value))
			if !slices.Contains(varying, a.Key) {
				same = append(same, details[len(details)-1])
			}
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	if !found {
		return
	}
	_, k.Text, _ = strings.Cut(r.Message, ": ")
	if len(details) > 0 {
		k.Text += " (" + strings.Join(details, ", ") + ")"
	}
	k.Text += "; " + strings.Join(advice, "; ")
	k.same = fmt.Sprint(k.Rule, r.Message, same, advice)
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = slices.DeleteFunc(w.list, func(o Warning) bool { return o.same == k.same })
	w.list = append(w.list[max(0, len(w.list)-mostWarnings+1):], k)
}
