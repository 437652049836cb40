// Package scene runs the scenes of the playground. A scene is a stream of requests that
// goes through several algorithms. It runs in the page, compiled to WebAssembly, or in the
// server if it uses Redis.
package scene

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	"github.com/seed83679106/weir/quota"
)

const (
	// epoch is a midnight UTC, in µs since 1970. Scenes in memory begin a little before it,
	// so they are the same whenever they are opened.
	epoch = int64(20_834*24*60*60) * second

	// looksBack is how many frames a scene in memory begins with. Together they show two
	// periods.
	looksBack = 80
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
	rows     []*row
	problem  string // not sent yet
	announce bool   // the settings must be sent
	fresh    bool   // when the settings arrive, the page must clear what it shows
	moved    bool   // there is a frame to send
	past     int    // frames of the past that are not sent yet
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
	s.pattern, s.held, s.rows = nil, nil, nil
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
