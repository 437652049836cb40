package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
)

// A desk is an admin handler with overrides and a rule api of 10 requests an hour, with a penalty.
type desk struct {
	t *testing.T
	l *weir.Limiter
	h http.Handler
}

func newDesk(t *testing.T) *desk { return newDeskOn(t, memstore.New(memstore.Options{})) }

func newDeskOn(t *testing.T, store weir.Store) *desk {
	t.Helper()
	live := overrides.NewLive(overrides.LiveOptions{})
	rule := hourly("api", 10)
	rule.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(100, time.Hour), Duration: time.Minute}
	rule.ForKey = live.Of("api", nil)
	l := must(t, store, rule)
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Overrides: live})
	if err != nil {
		t.Fatal(err)
	}
	return &desk{t, l, h}
}

// do makes a change, checks its status, and returns its id.
func (d *desk) do(method, target, body string, code int) (id string) {
	d.t.Helper()
	w := send(d.h, method, target, body)
	if w.Code != code {
		d.t.Errorf("%s %s: got %d, %s, want %d", method, target, w.Code, w.Body, code)
	}
	return w.Header().Get("Weir-Change")
}

// left returns how many requests a user may still send, or -1 if the user is banned.
func (d *desk) left(user string) int64 {
	d.t.Helper()
	var a struct {
		Rules []struct {
			BannedFor float64 `json:"banned_for"`
			Limits    []struct{ Remaining int64 }
		}
	}
	if err := json.Unmarshal(send(d.h, "GET", "/state?rule=api&key="+user, "").Body.Bytes(), &a); err != nil {
		d.t.Fatal(err)
	}
	if a.Rules[0].BannedFor > 0 {
		return -1
	}
	if len(a.Rules[0].Limits) == 0 {
		return -2
	}
	return a.Rules[0].Limits[0].Remaining
}

// TestUndo: an undone change leaves the key as it was before, as far as time has not changed it.
func TestUndo(t *testing.T) {
	const set = `{"limits": [{"quota": %d}], "seconds": 3600}`
	for _, tt := range []struct {
		name             string
		before           []string // changes
		change           string
		was, then, after int64 // what is left
		wait             time.Duration
		code             int // of the undo
	}{
		{"reset", nil, "POST /reset", 4, 10, 4, 0, 200},
		{"reset, after 10 minutes", nil, "POST /reset", 4, 10, 4, 10 * time.Minute, 200},
		{"reset, when all would be free anyway", nil, "POST /reset", 4, 10, 10, time.Hour, 409},
		{"reset of nothing", []string{"POST /reset"}, "POST /reset", 10, 10, 10, 0, 409},
		{"grant", nil, `POST /grant {"units": 2}`, 4, 6, 4, 0, 200},
		{"grant of more than was spent", nil, `POST /grant {"units": 99}`, 4, 10, 4, 0, 200},
		{"ban", nil, `POST /ban {"seconds": 600}`, 4, -1, 4, 0, 200},
		{"longer ban", []string{`POST /ban {"seconds": 60}`}, `POST /ban {"seconds": 600}`, -1, -1, -1, 0, 200},
		{"longer ban, when the first would have ended", []string{`POST /ban {"seconds": 60}`}, `POST /ban {"seconds": 600}`, -1, -1, 4, time.Minute, 200},
		{"shorter ban", []string{`POST /ban {"seconds": 600}`}, `POST /ban {"seconds": 60}`, -1, -1, -1, 0, 409},
		{"unban", []string{`POST /ban {"seconds": 600}`}, "POST /unban", -1, 4, -1, 0, 200},
		{"unban, when the ban would have ended", []string{`POST /ban {"seconds": 600}`}, "POST /unban", -1, 4, 4, 10 * time.Minute, 409},
		{"override", nil, "POST /override " + fmt.Sprintf(set, 50), 4, 44, 4, 0, 200},
		{"second override", []string{"POST /override " + fmt.Sprintf(set, 20)}, "POST /override " + fmt.Sprintf(set, 50), 14, 44, 14, 0, 200},
		{"second override, when the first would have ended", []string{`POST /override {"limits": [{"quota": 20}], "seconds": 60}`}, "POST /override " + fmt.Sprintf(set, 50), 14, 44, 4, time.Minute, 200},
		{"removed override", []string{`POST /override {"denied": true}`}, "DELETE /override", -2, 4, -2, 0, 200},
		{"expired override", nil, `POST /override {"limits": [{"quota": 50}], "seconds": 60}`, 4, 44, 4, time.Minute, 409},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t)
				spend(d.l, "anna", 6)
				do := func(change string) string {
					method, rest, _ := strings.Cut(change, " ")
					path, body, _ := strings.Cut(rest, " ")
					return d.do(method, path+"?rule=api&key=anna", body, 200)
				}
				for _, change := range tt.before {
					do(change)
				}
				was := d.left("anna")
				id := do(tt.change)
				then := d.left("anna")
				time.Sleep(tt.wait)
				d.do("POST", "/undo?change="+id, "", tt.code)
				if after := d.left("anna"); was != tt.was || then != tt.then || after != tt.after {
					t.Errorf("got %d, %d, %d, want %d, %d, %d", was, then, after, tt.was, tt.then, tt.after)
				}
				if tt.name == "longer ban" {
					time.Sleep(time.Minute)
					if got := d.left("anna"); got != 4 {
						t.Errorf("the first ban did not end after its minute: got %d", got)
					}
				}
			})
		})
	}
}

// TestUnbanOfNothing: an unban says whether there was a ban, or strikes, or nothing.
func TestUnbanOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		spend(d.l, "bob", 11) // the last is refused: a strike
		d.do("POST", "/ban?rule=api&key=carol", `{"seconds": 60}`, 200)
		for _, c := range []struct{ key, want string }{
			{"anna", "lifted no ban, because it had neither a ban nor strikes"},
			{"bob", "forgot its strikes and earlier bans; it was not banned"},
			{"carol", "lifted its ban, which had 1m left"},
		} {
			d.do("POST", "/unban?rule=api&key="+c.key, "", 200)
			if got := send(d.h, "GET", "/changes", "").Body.String(); !strings.Contains(got, c.want) {
				t.Errorf("%s: got the changes %s, want %q", c.key, got, c.want)
			}
		}
	})
}

// TestUndoConflicts: a change of an override that another operator has changed since is not
// undone, and only known changes are undone, by pages of the same origin.
func TestUndoConflicts(t *testing.T) {
	d := newDesk(t)
	first := d.do("POST", "/override?rule=api&key=anna", `{"limits": [{"quota": 50}]}`, 200)
	second := d.do("POST", "/override?rule=api&key=anna", `{"limits": [{"quota": 70}]}`, 200)
	d.do("POST", "/undo?change="+first, "", 409)
	if got := d.left("anna"); got != 70 {
		t.Errorf("got %d left, want the 70 of the second operator", got)
	}
	d.do("POST", "/undo?change="+second, "", 200)
	d.do("POST", "/undo?change="+first, "", 200) // what is in force is the first override again
	if got := d.left("anna"); got != 10 {
		t.Errorf("got %d left, want the 10 of the rule", got)
	}

	d.do("POST", "/undo?change=", "", 404)
	d.do("POST", "/undo", "", 404)
	d.do("POST", "/undo?change=a&change=b", "", 400)
	d.do("GET", "/undo?change="+second, "", 405)
	id := d.do("POST", "/ban?rule=api&key=bob", `{"seconds": 60}`, 200)
	for _, fields := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://elsewhere.example"}} {
		if w := send(d.h, "POST", "/undo?change="+id, "", fields...); w.Code != 403 || d.left("bob") != -1 {
			t.Errorf("%v: got %d", fields, w.Code)
		}
	}
}

// TestUndoConflictsOfBans: a ban that another operator has changed since is neither lifted nor set again by an
// undo.
func TestUndoConflictsOfBans(t *testing.T) {
	for _, tt := range []struct {
		change, since string // changes by two operators
		code          int    // of the undo of the first
		left          int64
	}{
		{`POST /ban {"seconds": 60}`, `POST /ban {"seconds": 3600}`, 409, -1},
		{`POST /ban {"seconds": 60}`, `POST /ban {"seconds": 60}`, 200, 10}, // nothing has changed
		{`POST /ban {"seconds": 60}`, `POST /unban`, 409, 10},
		{`POST /unban`, `POST /ban {"seconds": 3600}`, 409, -1},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t)
			d.do("POST", "/ban?rule=api&key=anna", `{"seconds": 10}`, 200)
			do := func(change string) string {
				method, rest, _ := strings.Cut(change, " ")
				path, body, _ := strings.Cut(rest, " ")
				return d.do(method, path+"?rule=api&key=anna", body, 200)
			}
			id := do(tt.change)
			do(tt.since)
			d.do("POST", "/undo?change="+id, "", tt.code)
			time.Sleep(11 * time.Second)
			if got := d.left("anna"); got != tt.left {
				t.Errorf("%s, then %s: after the undo of the first got %d, want %d", tt.change, tt.since, got, tt.left)
			}
		})
	}
}

// TestUndoBanWithoutPenalty: the ban of a rule that has lost its penalty since is not reported as lifted, and can be
// undone once the rule has a penalty again.
func TestUndoBanWithoutPenalty(t *testing.T) {
	store := memstore.New(memstore.Options{})
	with, without := hourly("api", 10), hourly("api", 10)
	with.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(100, time.Hour), Duration: time.Minute}
	limiter := must(t, store, with)
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{limiter} }})
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t, limiter, h}
	id := d.do("POST", "/ban?rule=api&key=anna", `{"seconds": 3600}`, 200)
	limiter = must(t, store, without)
	d.do("POST", "/undo?change="+id, "", 409)
	limiter = must(t, store, with)
	if got := d.left("anna"); got != -1 {
		t.Errorf("got %d left, want a ban", got)
	}
	d.do("POST", "/undo?change="+id, "", 200)
	if got := d.left("anna"); got != 10 {
		t.Errorf("got %d left, want 10", got)
	}
}

// A slow store calls wait before each decision that forces units.
type slow struct {
	weir.Store
	wait func()
}

func (s *slow) Take(ctx context.Context, t *quota.Transaction) error {
	if t.Mode == quota.ModeForce {
		s.wait()
	}
	return s.Store.Take(ctx, t)
}

// TestUndoOnce: of two operators who undo a change at the same time, one gets an error. If the store
// fails, the change can be undone later.
func TestUndoOnce(t *testing.T) {
	store := &slow{Store: memstore.New(memstore.Options{})}
	d := newDeskOn(t, store)
	spend(d.l, "bob", 6)
	id := d.do("POST", "/grant?rule=api&key=bob", `{"units": 3}`, 200)
	store.wait = func() { d.do("POST", "/undo?change="+id, "", 409) } // by another operator
	d.do("POST", "/undo?change="+id, "", 200)
	d.do("POST", "/undo?change="+id, "", 409)
	if got := d.left("bob"); got != 4 {
		t.Errorf("got %d left, want 4", got)
	}

	down := &sick{Store: memstore.New(memstore.Options{})}
	d = newDeskOn(t, down)
	id = d.do("POST", "/ban?rule=api&key=bob", `{"seconds": 60}`, 200)
	err := errors.New("away")
	down.err.Store(&err)
	d.do("POST", "/undo?change="+id, "", 503)
	down.err.Store(nil)
	d.do("POST", "/undo?change="+id, "", 200)
}

// TestChanges: /changes has the last 200 changes, the newest first, and an undo is one of them.
func TestChanges(t *testing.T) {
	d := newDesk(t)
	list := func() (list []struct {
		ID, Rule, Key, What string
		Undoable, Undone    bool
	}) {
		var a struct{ Changes any }
		a.Changes = &list
		if err := json.Unmarshal(send(d.h, "GET", "/changes", "").Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := list(); got == nil || len(got) != 0 {
		t.Errorf("before a change: got %v", got)
	}
	id := d.do("POST", "/ban?rule=api&key=anna", `{"seconds": 60}`, 200)
	d.do("POST", "/undo?change="+id, "", 200)
	if got, want := fmt.Sprintf("%+v", list()[:2]), "[{ID:x Rule:api Key:anna What:undid: banned it for 1m Undoable:false Undone:false} {ID:x Rule:api Key:anna What:banned it for 1m Undoable:false Undone:true}]"; blind(got) != want {
		t.Errorf("got %s, want %s", blind(got), want)
	}
	for i := range 200 {
		d.do("POST", fmt.Sprintf("/ban?rule=api&key=k%d", i), `{"seconds": 60}`, 200)
	}
	if got := list(); len(got) != 200 || got[0].Key != "k199" || got[199].Key != "k0" {
		t.Errorf("got %d changes, from %s to %s", len(got), got[0].Key, got[len(got)-1].Key)
	}
	if w := send(d.h, "POST", "/undo?change="+id, ""); w.Code != 404 {
		t.Errorf("a change that is forgotten: got %d", w.Code)
	}
}

// blind returns text without the ids of changes.
func blind(text string) string {
	for before, after, ok := strings.Cut(text, "ID:"); ok; before, after, ok = strings.Cut(text, "ID:") {
		_, after, _ = strings.Cut(after, " ")
		text = before + "id=x " + after
	}
	return strings.ReplaceAll(text, "id=x", "ID:x")
}
