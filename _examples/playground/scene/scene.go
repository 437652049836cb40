// Package scene runs the scenes of the playground. A scene is a stream of requests that
// goes through several algorithms. It runs in the page, compiled to WebAssembly, or in the
// server if it uses Redis.
package scene

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/seed83679106/weir/quota"
)

const (
	// epoch is a midnight UTC, in µs since 1970. Scenes in memory begin a little before it,
	// so they are the same whenever they are opened.
	epoch = int64(20_834*24*60*60) * second

	// most is the largest number of requests and messages that one call of advance sends.
	// While that many decisions wait to be sent to the page, the clock of the scene stands
	// still.
	most = 1000

	// nap is the longest gap between two frames that a scene in memory makes up for. The
	// rest of a longer gap is skipped.
	nap = 250 * time.Millisecond

	// looksBack is how many frames a scene in memory begins with. Together they show two
	// periods.
	looksBack = 80

	// longest is the largest number of requests that a held button sends after the first.
	longest = 600
)

// A Scene is what one visitor sees: a stream of requests. Each request goes through several
// algorithms, which decide independently of each other.
type Scene struct {
	ID   string
	Wake chan struct{} // receives a value after a command or request, which may cause Events

	ctx   context.Context
	redis func() (quota.Store, error)

	mu       sync.Mutex
	set      settings
	store    quota.Store // for requests
	looks    quota.Store // for reading counts, without the Hybrid
	clock    *memory     // nil if the scene uses the clock of Redis
	asked    *counted    // nil if the scene does not use Redis
	decided  int         // decisions about requests
	start    int64       // in µs since 1970, as are all instants here
	now      int64
	ahead    int64     // how far the clock of Redis is ahead of this process's, in µs
	wall     time.Time // when the scene last caught up
	pattern  []*source
	held     *source
	chat     *source
	rows     []*row
	lines    []line // lines of the chat that are not sent yet
	problem  string // not sent yet
	announce bool   // the settings must be sent
	fresh    bool   // when the settings arrive, the page must clear what it shows
	moved    bool   // there is a frame to send
	past     int    // frames of the past that are not sent yet
}

// A row is one algorithm of a scene, with its counts.
type row struct {
	kind     *kind
	limit    quota.Limit
	last     quota.Transaction // the latest transaction of any user
	admitted []span            // for each user, what passed in the last period
	peak     int64             // the most requests of one user that passed in any period
	passed   int64
	refused  int64
	hits     []hit // not sent yet
}

// A hit is one request and its decision, or several requests of one instant: the instant,
// the user, how many passed, Remaining, RetryAfter, ResetAfter and Wait, 1 if the visitor
// sent the request with the button, and how many were refused. Times are in µs.
type hit [9]int64

// A span has the requests that passed in the last period: instants, how many at each, and
// their sum.
type span struct {
	at, n []int64
	sum   int64
}

func (s *span) add(at, n, period int64) {
	s.at, s.n, s.sum = append(s.at, at), append(s.n, n), s.sum+n
	old := 0
	for ; s.at[old] <= at-period; old++ {
		s.sum -= s.n[old]
	}
	s.at, s.n = s.at[old:], s.n[old:]
}

// New returns a scene with the settings of a link. The scene ends with ctx. The function
// redis returns an empty store in Redis; if it is nil, there is no Redis.
func New(ctx context.Context, id string, link url.Values, redis func() (quota.Store, error)) (*Scene, error) {
	set, err := parse(link)
	if err != nil {
		return nil, err
	}
	s := &Scene{ID: id, Wake: make(chan struct{}, 1), ctx: ctx, redis: redis, set: set, past: looksBack}
	s.failed(s.restart())
	return s, nil
}

// silent is the message for the visitor if the store fails. The scene is then paused.
const silent = "Redis does not answer."

// Do executes the command of a control of the page. The field "do" of form names the
// command.
func (s *Scene) Do(form url.Values) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	set, do := s.set, form.Get("do")
	if do == "set" {
		var err error
		if set, err = parse(form); err != nil {
			return err
		}
	}
	err := s.catchUp()
	if err == nil {
		switch do {
		case "hit":
			err = s.hit(you, 1, 1)
		case "hold":
			err = s.hold()
		case "release":
			s.held = nil
		case "step":
			err = s.step()
		case "restart":
			err = s.restart()
		case "chat":
			err = s.startChat()
		case "set":
			err = s.change(set)
		default:
			return errors.New("do is unknown")
		}
	}
	s.failed(err)
	s.tell()
	return nil
}

// tell wakes the reader of Events, through Wake.
func (s *Scene) tell() {
	select {
	case s.Wake <- struct{}{}:
	default:
	}
}

// restart begins the scene anew.
func (s *Scene) restart() error {
	s.pattern, s.held, s.chat, s.rows, s.lines = nil, nil, nil, nil, nil
	s.decided, s.ahead, s.clock, s.asked = 0, 0, nil, nil
	s.announce, s.fresh, s.moved = true, true, true
	s.wall = time.Now()
	s.resize()
	if s.set.Redis {
		if s.redis == nil {
			return errors.New("scene: there is no Redis")
		}
		store, err := s.redis()
		if err != nil {
			return err
		}
		s.looks, s.asked = store, &counted{Store: store}
		s.store = s.asked
		if s.set.Hybrid {
			s.store = quota.Hybrid(s.asked, quota.HybridOptions{MaxKeys: most})
		}
		s.now = time.Now().UnixMicro() // used if Redis does not answer
		s.start = s.now
		at, _, err := s.look()
		if err != nil {
			return err
		}
		s.now, s.ahead = at, at-time.Now().UnixMicro()
	} else {
		period := s.set.Period * second
		s.now = epoch/period*period - period*3/10
		s.clock = &memory{now: s.now, states: map[stateKey]quota.State{}}
		s.store, s.looks = s.clock, s.clock
	}
	s.start = s.now
	s.pattern = s.patternFrom(s.now)
	return nil
}

// change sets other settings. It restarts the scene if Redis or Hybrid is switched on or
// off. After any other change, the units that keys have spent still count.
func (s *Scene) change(set settings) error {
	old := s.set
	s.set = set
	if old.Redis != set.Redis || old.Hybrid != set.Hybrid {
		return s.restart()
	}
	s.resize()
	resumed := set.Redis && old.Paused && !set.Paused // the clock of Redis went on meanwhile
	if resumed {
		s.now = time.Now().UnixMicro() + s.ahead
	}
	if old.Pattern != set.Pattern || old.Rate != set.Rate {
		s.recount(func(*row) bool { return true }) // counts of different traffic are not added up
	}
	if resumed || old.Pattern != set.Pattern || old.Rate != set.Rate || old.Quota != set.Quota || old.Period != set.Period {
		s.pattern, s.held = s.patternFrom(s.now), nil
	}
	s.announce, s.moved = true, true
	return nil
}

// resize makes one row for each algorithm of the settings. Rows that the scene already has
// are kept, with their counts.
func (s *Scene) resize() {
	old := s.rows
	s.rows = nil
	for _, name := range s.set.Algorithms {
		k := kindOf(name)
		r := &row{kind: k, admitted: make([]span, len(users))}
		if i := slices.IndexFunc(old, func(r *row) bool { return r.kind == k }); i >= 0 {
			r = old[i]
		}
		s.rows = append(s.rows, r)
	}
	s.recount(func(r *row) bool {
		was := r.limit
		r.limit = r.kind.limitOf(&s.set)
		return r.limit != was
	})
}

// recount sets the counts of the rows for which changed returns true to 0, so that they do
// not mix decisions under different settings.
func (s *Scene) recount(changed func(*row) bool) {
	for _, r := range s.rows {
		if changed(r) {
			r.peak, r.passed, r.refused = 0, 0, 0
		}
	}
}

// lanes returns how many users the pattern has.
func (s *Scene) lanes() int {
	if s.set.Pattern == "spammer" {
		return len(users)
	}
	return 1
}

// catchUp sends the requests and messages that are due by now.
func (s *Scene) catchUp() error {
	until := s.due()
	if s.set.Paused {
		s.moved = s.moved || until > s.now // the clock of Redis goes on
		s.now = until
		return nil
	}
	return s.advance(until)
}

// due returns what the clock of the scene should show by now.
func (s *Scene) due() int64 {
	wall := time.Now()
	gone := min(wall.Sub(s.wall), nap)
	s.wall = wall
	switch {
	case s.set.Redis:
		return wall.UnixMicro() + s.ahead
	case s.set.Paused:
		return s.now
	}
	return s.now + int64(float64(gone.Microseconds())*s.set.Speed)
}

// advance moves the clock of the scene forward to an instant, and sends the requests and
// messages that are due by then.
func (s *Scene) advance(until int64) error {
	if len(s.rows[0].hits) >= most {
		return nil
	}
	s.moved = true
	for range most {
		next, at := s.next()
		if at > until {
			s.tick(max(s.now, until))
			return nil
		}
		k, at := next.together(at)
		s.tick(max(s.now, at))
		next.n += k
		if err := next.fire(next.n-k, k); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scene) tick(now int64) {
	s.now = now
	if s.clock != nil {
		s.clock.now = now
	}
}

// next returns the source that is due first, and when it is due.
func (s *Scene) next() (first *source, at int64) {
	at = never
	for _, src := range append([]*source{s.held, s.chat}, s.pattern...) {
		if src == nil {
			continue
		}
		if due := src.at(src.n); due < at {
			first, at = src, due
		}
	}
	return first, at
}

// step moves the clock of a scene in memory by a tenth of the period.
func (s *Scene) step() error {
	if s.clock == nil {
		return nil
	}
	return s.advance(s.now + s.set.Period*second/10)
}

// hold sends a request now, and more requests at the rate of the scene until the field held
// is nil again.
func (s *Scene) hold() error {
	start, every := s.now+s.interval(), s.interval()
	s.held = &source{
		at: func(n int64) int64 {
			if n >= longest {
				return never
			}
			return start + n*every
		},
		fire: func(_, k int64) error { return s.hit(you, k, 1) },
	}
	return s.hit(you, 1, 1)
}

// hit sends k requests of a user through every algorithm, now. own is 1 if the visitor sent
// them with the button, otherwise 0.
func (s *Scene) hit(user int, k, own int64) error {
	for _, r := range s.rows {
		charge := quota.Charge{Rule: "api", Key: users[user], Limit: r.limit}
		passed, err := send(s.take, &r.last, charge, r.kind.within(&s.set), k)
		if err != nil {
			return err
		}
		r.record(user, passed, k-passed, own, s.set.Period*second)
	}
	s.moved = true
	return nil
}

// send charges k requests of one instant and returns how many passed. last is then the
// latest transaction. If requests may wait, send tries all of them, then half of them, and
// so on.
func send(take func(*quota.Transaction) error, last *quota.Transaction, charge quota.Charge, within time.Duration, k int64) (passed int64, err error) {
	charge.Cost = 1
	if k > 1 && within == 0 {
		*last = quota.Transaction{Charges: []quota.Charge{charge}, Mode: quota.ModeAtMost, Most: k}
		err = take(last)
		return last.Granted, err
	}
	for n := k; k > 0 && n > 0; n = min(n, k) {
		charge.Cost = n
		*last = quota.Transaction{Charges: []quota.Charge{charge}, Within: within}
		if err := take(last); err != nil {
			return passed, err
		}
		if last.Allowed() {
			passed, k = passed+n, k-n
		} else {
			n /= 2
		}
	}
	return passed, nil
}

func (s *Scene) take(t *quota.Transaction) error {
	s.decided++
	return s.store.Take(s.ctx, t)
}

// record keeps the decision in r.last about requests of a user.
func (r *row) record(user int, passed, refused, own, period int64) {
	at, d := r.last.At.UnixMicro(), r.last.Decisions[0]
	if refused > 0 && d.RetryAfter == 0 { // of several, some passed
		d.RetryAfter = d.NextAfter
	}
	r.hits = append(r.hits, hit{at, int64(user), passed, d.Remaining, d.RetryAfter.Microseconds(), d.ResetAfter.Microseconds(), r.last.Wait.Microseconds(), own, refused})
	r.passed += passed
	r.refused += refused
	if passed > 0 {
		r.admitted[user].add(at, passed, period)
		r.peak = max(r.peak, r.admitted[user].sum)
	}
}
