package admin

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
)

// maxChanges is the maximum number of changes that are kept.
const maxChanges = 200

// A change is what an operator has changed through this handler.
type change struct {
	id              string
	at              time.Time
	who, rule       string
	scope           scope
	what            string // in a sentence
	warning         string // what the change did not do, or ""
	undo            undo   // nil if it cannot be undone
	undone, undoing bool
}

// An undo reverts a change to the key of t under its rule. The file may have been reloaded since
// the change, so the rule of t is the one that is now in force.
type undo func(ctx context.Context, t *target) error

// changes are the last changes, the earliest first.
type changes struct {
	mu   sync.Mutex
	list []*change
}

// add keeps a change, and returns its id. Ids are random; otherwise, a page that was loaded from an
// earlier process could undo a change of this process.
func (c *changes) add(n change) (id string) {
	n.id, n.at, n.scope.Key = rand.Text()[:16], time.Now(), strings.Clone(storedkey.Of(n.scope.Key))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == maxChanges {
		c.list = slices.Delete(c.list, 0, 1)
	}
	c.list = append(c.list, &n)
	return n.id
}

type changeBody struct {
	ID  string    `json:"id"`
	At  time.Time `json:"at"`
	Who string    `json:"who,omitempty"`
	keyed
	What     string `json:"what"`
	Warning  string `json:"warning,omitempty"`
	Undoable bool   `json:"undoable"`
	Undone   bool   `json:"undone,omitempty"`
}

func (c *change) body() changeBody {
	return changeBody{c.id, c.at.UTC(), c.who, keyed{c.rule, c.scope}, c.what, c.warning, c.undo != nil && !c.undone,
		c.undone}
}

// bodies returns the changes, the newest first.
func (c *changes) bodies() []changeBody {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []changeBody{}
	for _, n := range slices.Backward(c.list) {
		list = append(list, n.body())
	}
	return list
}

// find returns the change with an id.
func (c *changes) find(id string) (changeBody, bool) {
	list := c.bodies()
	i := slices.IndexFunc(list, func(b changeBody) bool { return b.ID == id })
	if i < 0 {
		return changeBody{}, false
	}
	return list[i], true
}

// claim returns the change with an id, if it can be undone and nobody else is undoing it. The
// caller calls done.
func (c *changes) claim(id string) (n *change, done func(undone bool), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.list, func(n *change) bool { return n.id == id })
	switch {
	case i < 0:
		return nil, nil, refuse(http.StatusNotFound,
			"this process knows no change %q: it remembers the last %d changes that were made through it", id, maxChanges)
	case c.list[i].undone:
		return nil, nil, refuse(http.StatusConflict, "the change is undone already")
	case c.list[i].undo == nil:
		return nil, nil, refuse(http.StatusConflict, "this change cannot be undone")
	case c.list[i].undoing:
		return nil, nil, refuse(http.StatusConflict, "the change is being undone")
	}
	n = c.list[i]
	n.undoing = true
	return n, func(undone bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		n.undoing, n.undone = false, undone
	}, nil
}

// changesAnswer returns the changes that were made through this handler.
func (h *Handler) changesAnswer(*http.Request, url.Values, []rule) (any, error) {
	return struct {
		Changes []changeBody `json:"changes"`
	}{h.changes.bodies()}, nil
}

// undo undoes the change that the query names, and returns the answer to the request.
func (h *Handler) undo(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := allow(w, r, http.MethodPost); err != nil {
		return nil, err
	}
	if err := h.origin.Check(r); err != nil {
		return nil, errOrigin
	}
	q, err := query(r, "change")
	if err != nil {
		return nil, err
	}
	c, done, err := h.changes.claim(q.Get("change"))
	if err != nil {
		return nil, err
	}
	t, err := h.target(c.rule, c.scope)
	if err != nil {
		done(false)
		return nil, err
	}
	t.what = "undid: " + c.what
	answer, err := h.carryOut(w, r, t, c.what, func(ctx context.Context) error { return c.undo(ctx, t) })
	done(w.Header().Get(changeField) != "") // even if the state after it cannot be read
	return answer, err
}

// was is the override of a key before or after a change. ok is false if the key had none.
type was struct {
	overrides.Override
	ok bool
}

func (h *Handler) overrideNow(t *target) (o was) {
	o.Override, o.ok = h.o.Overrides.Get(t.Name, t.entry())
	return o
}

// restore returns a function that reverts a change to the override of a key.
func (h *Handler) restore(before, after was) undo {
	return func(ctx context.Context, t *target) error {
		if now := h.overrideNow(t); now.ok != after.ok || after.ok && !sameOverride(now.Override, after.Override) {
			return refuse(http.StatusConflict, "the override of the key has been changed since, so undoing this change would undo that one too")
		}
		rest, expires := time.Until(before.End).Truncate(time.Microsecond), !before.End.IsZero()
		if !expires {
			rest = 0
		}
		switch {
		case before.ok && (rest > 0 || !expires):
			return h.o.Overrides.Set(ctx, t.Name, before.Entry, rest, before.Note)
		case !after.ok:
			return refuse(http.StatusConflict, "the override would have expired since")
		}
		_, err := h.o.Overrides.Remove(ctx, t.Name, t.entry())
		return err
	}
}

func sameOverride(a, b overrides.Override) bool {
	return a.Note == b.Note && a.End.IsZero() == b.End.IsZero() && a.End.Sub(b.End).Abs() < 2*time.Second &&
		reflect.DeepEqual(bodyOfOverride(a).Limits, bodyOfOverride(b).Limits) &&
		a.Unlimited == b.Unlimited && a.Denied == b.Denied
}

// overriding calls f, which changes the override of the target, and records how to undo this
// change.
func (h *Handler) overriding(t *target, f func() error) error {
	before := h.overrideNow(t)
	if err := f(); err != nil {
		return err
	}
	after := h.overrideNow(t)
	t.undo = h.restore(before, after)
	if after.ok {
		t.what = textOfOverride(after.Override)
	} else {
		t.what = "removed its override: " + textOfOverride(before.Override)
	}
	return nil
}

// textOfOverride says in a sentence what an override does.
func textOfOverride(o overrides.Override) string {
	text := ""
	switch {
	case o.Denied:
		text = "refused all its requests"
	case o.Unlimited:
		text = "exempted it from the limits"
	default:
		var limits []string
		for _, l := range bodyOfOverride(o).Limits {
			limits = append(limits, l.String())
		}
		text = "set custom limits: " + strings.Join(limits, ", ")
	}
	if !o.End.IsZero() {
		text += ", until " + o.End.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	if note := []rune(o.Note); len(note) > 100 {
		text += " (" + string(note[:100]) + "…)"
	} else if len(note) > 0 {
		text += " (" + o.Note + ")"
	}
	return text
}

// banning calls f, which changes the ban of the target, and records how to undo this change.
func (t *target) banning(ctx context.Context, f func() error) error {
	var before time.Duration
	if len(t.penalizers) > 0 {
		var err error
		if before, err = t.penalizers[0].Banned(ctx, t.Name, t.Key); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	after, err := t.penalizers[0].Banned(ctx, t.Name, t.Key)
	if err != nil {
		return nil // the change was made; what cannot be known cannot be undone
	}
	end := time.Now().Add(before)
	switch {
	case after > before:
		t.what = "banned it for " + durationText(seconds(after))
	case before == 0:
		t.what = "forgot its strikes and earlier bans; it was not banned"
		return nil
	case after == 0:
		t.what = "lifted its ban, which had " + durationText(seconds(before)) + " left"
	default:
		t.what = "left it banned for another " + durationText(seconds(after)) + ", which is longer"
		return nil
	}
	t.undo = func(ctx context.Context, t *target) error {
		rest := time.Until(end).Truncate(time.Microsecond)
		if after == 0 && rest <= 0 {
			return refuse(http.StatusConflict, "the ban would have ended since")
		}
		if after > 0 {
			if err := t.eachWithPenalty(t.unbanIn(ctx, new(bool))); err != nil {
				return err
			}
		}
		if rest > 0 {
			return t.eachWithPenalty(func(l *weir.Limiter) error { return l.Ban(ctx, t.Name, t.Key, rest) })
		}
		return nil
	}
	return nil
}

// refunding calls f, which refunds units of the target's charges, and records how to undo this
// change.
func (h *Handler) refunding(ctx context.Context, t *target, f func([]quota.Charge) error) error {
	charges, err := h.chargesToChange(ctx, t)
	if err != nil {
		return err
	}
	if len(charges) == 0 { // the key has no limits
		t.nothing, t.what = true, "refunded no units, because it has no limits"
		return f(charges)
	}
	before, err := quota.Peek(ctx, h.store, charges...)
	if err != nil {
		return err
	}
	if err := f(slices.Clone(charges)); err != nil {
		return err
	}
	after, err := quota.Peek(ctx, h.store, charges...)
	if err != nil {
		return nil // the change was made; what cannot be known cannot be undone
	}
	given := map[string]refund{} // by limit
	var texts []string
	for i := range charges {
		l, d := &charges[i].Limit, &before.Decisions[i]
		n := after.Decisions[i].Remaining - d.Remaining
		if d.Remaining < 0 || n <= 0 {
			continue
		}
		texts = append(texts, fmt.Sprintf("%d of %s", n, l.Label()))
		if !l.InFlight() { // nobody would release them
			given[l.Label()] = refund{n, time.Now().Add(d.ResetAfter)}
		}
	}
	if len(texts) == 0 {
		t.nothing, t.what = true, "refunded no units, because it had spent none"
		return nil
	}
	t.what = "refunded units: " + strings.Join(texts, ", ")
	if len(given) > 0 {
		t.undo = func(ctx context.Context, t *target) error { return h.chargeAgain(ctx, t, given) }
	}
	return nil
}

// A refund is how many units of a limit were refunded, and when they would have been available anyway.
type refund struct {
	units int64
	full  time.Time
}

// chargeAgain undoes refunds. The map given has them by the limit's label.
func (h *Handler) chargeAgain(ctx context.Context, t *target, given map[string]refund) error {
	charges, err := h.chargesToChange(ctx, t)
	if err != nil {
		return err
	}
	charges = slices.DeleteFunc(charges, func(c quota.Charge) bool { return !time.Now().Before(given[c.Limit.Label()].full) })
	if len(charges) == 0 {
		return refuse(http.StatusConflict, "these units would be available by now anyway")
	}
	for i := range charges {
		charges[i].Cost = min(given[charges[i].Limit.Label()].units, charges[i].Limit.Capacity())
	}
	return h.store.Take(ctx, &quota.Transaction{Charges: charges, Mode: quota.ModeForce})
}
