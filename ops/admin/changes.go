package admin

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
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

// A madeChange is a change that an operator has made through this handler.
type madeChange struct {
	changeBody
	undo undo // nil if it cannot be undone
}

type changeBody struct {
	ID  string    `json:"id"`
	At  time.Time `json:"at"`
	Who string    `json:"who,omitempty"`
	keyed
	What     string `json:"what"`              // a sentence whose subject is the operator
	Warning  string `json:"warning,omitempty"` // what the change did not do
	Undoable bool   `json:"undoable"`
	Undone   bool   `json:"undone,omitempty"` // or it is being undone
}

// An undo reverts a change to the key of t under its rule. The file may have been reloaded since
// the change, so the rule of t is the current rule.
type undo func(ctx context.Context, t *target) error

// changes are the last changes, the earliest first.
type changes struct {
	mu   sync.Mutex
	list []*madeChange
}

// add keeps a change, and returns its id. Ids are random, because a page that was loaded from an
// earlier process could otherwise undo a change made by this process.
func (c *changes) add(n madeChange) (id string) {
	n.ID, n.At, n.Key = rand.Text()[:16], time.Now().UTC(), strings.Clone(storedkey.Of(n.Key))
	n.Undoable = n.undo != nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == maxChanges {
		c.list = slices.Delete(c.list, 0, 1)
	}
	c.list = append(c.list, &n)
	return n.ID
}

// bodies returns the changes, the newest first.
func (c *changes) bodies() []changeBody {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []changeBody{}
	for _, n := range slices.Backward(c.list) {
		list = append(list, n.changeBody)
	}
	return list
}

// claim returns the change with the given id and marks it as undone, if it can be undone. If
// undoing fails, the caller must call release.
func (c *changes) claim(id string) (*madeChange, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.list, func(n *madeChange) bool { return n.ID == id })
	switch {
	case i < 0:
		return nil, refuse(http.StatusNotFound,
			"this process knows no change %q: it remembers the last %d changes that were made through it", id, maxChanges)
	case c.list[i].Undone:
		return nil, refuse(http.StatusConflict, "the change is undone already")
	case c.list[i].undo == nil:
		return nil, refuse(http.StatusConflict, "this change cannot be undone")
	}
	n := c.list[i]
	n.Undone, n.Undoable = true, false
	return n, nil
}

func (c *changes) release(n *madeChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.Undone, n.Undoable = false, true
}

// changesAnswer returns the changes that were made through this handler.
func (h *Handler) changesAnswer(*call) (any, error) {
	return struct {
		Changes []changeBody `json:"changes"`
	}{h.changes.bodies()}, nil
}

// undo undoes the change that the query names, and returns the answer to the request.
func (h *Handler) undo(c *call) (any, error) {
	n, err := h.changes.claim(c.q.Get("change"))
	if err != nil {
		return nil, err
	}
	defer func() {
		if c.w.Header().Get(changeField) == "" { // nothing was undone
			h.changes.release(n)
		}
	}()
	r, err := ruleOf(c.rules, n.Rule)
	if err != nil {
		return nil, err
	}
	t, err := h.target(c, r, n.scope)
	if err != nil {
		return nil, err
	}
	t.did.What = "undid: " + n.What
	return h.carryOut(t, n.What, func(ctx context.Context) error { return n.undo(ctx, t) })
}

// was is the override of a key before or after a change. ok is false if the key had no override.
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

// Two expiry times that differ by less than sameEnd belong to the same override or ban. They can
// differ because the store and this process have different clocks.
const sameEnd = 2 * time.Second

func sameOverride(a, b overrides.Override) bool {
	return a.Note == b.Note && a.End.IsZero() == b.End.IsZero() && a.End.Sub(b.End).Abs() < sameEnd &&
		slices.Equal(a.Limits, b.Limits) && a.Unlimited == b.Unlimited && a.Denied == b.Denied
}

// overriding calls f, which changes the override of the target, and records how to undo this
// change.
func (h *Handler) overriding(t *target, f func() error) error {
	before := h.overrideNow(t)
	if err := f(); err != nil {
		return err
	}
	after := h.overrideNow(t)
	t.did.undo = h.restore(before, after)
	if after.ok {
		t.did.What = textOfOverride(after.Override)
	} else {
		t.did.What = "removed its override: " + textOfOverride(before.Override)
	}
	return nil
}

// textOfOverride describes in a sentence what an override does.
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
	if o.Note != "" {
		text += fmt.Sprintf(" (%.100s)", o.Note)
	}
	return text
}

// around calls f between two look-ups. If only the second look-up fails, known is false: the change
// was made, but it cannot be undone, because its effect is unknown.
func around[T any](look func() (T, error), f func() error) (before, after T, known bool, err error) {
	if before, err = look(); err != nil {
		return before, after, false, err
	}
	if err = f(); err != nil {
		return before, after, false, err
	}
	after, errAfter := look()
	return before, after, errAfter == nil, nil
}

// banning calls f, which changes the ban of the target, and records how to undo this change.
func (h *Handler) banning(ctx context.Context, t *target, f func() error) error {
	if len(t.penalizers) == 0 {
		return refuse(http.StatusConflict, "rule %q has no penalty, so it has no bans", t.Name)
	}
	before, after, known, err := around(func() (time.Duration, error) { return t.banned(ctx) }, f)
	if err != nil || !known {
		return err
	}
	end, endAfter := time.Now().Add(before), time.Now().Add(after)
	switch {
	case after > before:
		t.did.What = "banned it for " + durationText(seconds(after))
	case before == 0:
		t.did.What = "forgot its strikes and earlier bans; it was not banned"
		return nil
	case after == 0:
		t.did.What = "lifted its ban, which had " + durationText(seconds(before)) + " left"
	default:
		t.did.What = "left it banned for another " + durationText(seconds(after)) + ", which is longer"
		return nil
	}
	t.did.undo = func(ctx context.Context, t *target) error {
		if err := h.stillBanned(ctx, t, endAfter); err != nil {
			return err
		}
		rest := time.Until(end).Truncate(time.Microsecond)
		if after == 0 && rest <= 0 {
			return refuse(http.StatusConflict, "the ban would have ended since")
		}
		if after > 0 {
			if _, err := t.unban(ctx); err != nil {
				return err
			}
		}
		if rest > 0 {
			return t.ban(ctx, rest)
		}
		return nil
	}
	return nil
}

// stillBanned returns an error unless the ban of the target ends at the given time, or has ended.
func (h *Handler) stillBanned(ctx context.Context, t *target, end time.Time) error {
	if len(t.penalizers) == 0 {
		return refuse(http.StatusConflict, "rule %q no longer has a penalty, so it has no bans", t.Name)
	}
	// In an outage, t.banned would find only bans that this process remembers.
	err := h.take(ctx, &quota.Transaction{Mode: quota.ModePeek,
		Charges: []quota.Charge{{Rule: t.Name, Key: t.Key, Limit: t.Penalty.Strikes}}})
	if err != nil {
		return err
	}
	now, err := t.banned(ctx)
	if err != nil {
		return err
	}
	if expected := max(0, time.Until(end)); (now - expected).Abs() >= sameEnd {
		return refuse(http.StatusConflict, "the ban of the key has been changed since, so undoing this change would undo that one too")
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
		t.nothing, t.did.What = true, "refunded no units, because it has no limits"
		return f(charges)
	}
	before, after, known, err := around(func() (*quota.Transaction, error) { return quota.Peek(ctx, h.store, charges...) },
		func() error { return f(slices.Clone(charges)) })
	if err != nil || !known {
		return err
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
		t.nothing, t.did.What = true, "refunded no units, because it had spent none"
		return nil
	}
	t.did.What = "refunded units: " + strings.Join(texts, ", ")
	if len(given) > 0 {
		t.did.undo = func(ctx context.Context, t *target) error { return h.chargeAgain(ctx, t, given) }
	}
	return nil
}

// A refund records how many units of a limit were refunded, and when they would have been available
// anyway.
type refund struct {
	units int64
	full  time.Time
}

// chargeAgain undoes refunds. The map given contains each refund under the label of its limit.
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
	return h.take(ctx, &quota.Transaction{Charges: charges, Mode: quota.ModeForce})
}

func (h *Handler) reset(ctx context.Context, t *target) error {
	return h.refunding(ctx, t, func(charges []quota.Charge) error {
		_, err := quota.Reset(ctx, h.store, charges...) // refunding records what was refunded
		return err
	})
}

func (h *Handler) grant(ctx context.Context, t *target) error {
	var body struct {
		Units int64 `json:"units"`
	}
	if err := t.read(&body); err != nil {
		return err
	}
	if body.Units < 1 {
		return refuse(http.StatusBadRequest, "units is %d; want at least 1", body.Units)
	}
	return h.refunding(ctx, t, func(charges []quota.Charge) error {
		for i := range charges {
			charges[i].Cost = -body.Units
		}
		return h.take(ctx, &quota.Transaction{Charges: charges})
	})
}

func (h *Handler) ban(ctx context.Context, t *target) error {
	var body struct {
		Seconds float64 `json:"seconds"`
		Note    string  `json:"note"`
	}
	if err := t.read(&body); err != nil {
		return err
	}
	d, err := durationOf(body.Seconds, "")
	if err != nil {
		return err
	}
	if t.Network != "" {
		e := t.entry()
		e.Denied = true
		return h.set(ctx, t, e, d, body.Note)
	}
	if err := t.onlyKey(); err != nil {
		return err
	}
	return h.banning(ctx, t, func() error {
		err := t.ban(ctx, d)
		// The list then also shows a ban that is in force only in this process, or a longer ban
		// that the key already had. An Event without a Transaction counts as no request.
		if rest, _ := t.banned(ctx); rest > 0 {
			h.o.Recorder.Observe(weir.Event{Key: t.Key, Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: t.Name, RetryAfter: rest}})
		}
		return err
	})
}

func (h *Handler) unban(ctx context.Context, t *target) error {
	if t.Network != "" {
		return h.removeOverride(ctx, t)
	}
	if err := t.onlyKey(); err != nil {
		return err
	}
	found := false
	err := h.banning(ctx, t, func() (err error) {
		found, err = t.unban(ctx)
		return err
	})
	if err == nil && !found {
		t.nothing, t.did.What = true, "lifted no ban, because it had neither a ban nor strikes"
	}
	return err
}

// banned returns how much longer the target is banned. The rule must have a penalty.
func (t *target) banned(ctx context.Context) (time.Duration, error) {
	return t.penalizers[0].Banned(ctx, t.Name, t.Key)
}

// ban bans the target in every limiter in which the rule has a penalty, because each of
// these limiters remembers bans.
func (t *target) ban(ctx context.Context, d time.Duration) error {
	for _, l := range t.penalizers {
		if err := l.Ban(ctx, t.Name, t.Key, d); err != nil {
			return err
		}
	}
	return nil
}

// unban lifts the ban of the target, and reports whether there was a ban, or a strike.
func (t *target) unban(ctx context.Context) (found bool, err error) {
	for _, l := range t.penalizers {
		was, err := l.Unban(ctx, t.Name, t.Key)
		if err != nil {
			return found, err
		}
		found = found || was
	}
	return found, nil
}
