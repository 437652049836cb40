package scene

import (
	"slices"

	"github.com/seed83679106/weir/quota"
)

// A frame has the requests since the last frame, and the state of the scene.
type frame struct {
	Now     int64      `json:"now"`
	Next    int64      `json:"next,omitempty"` // when the next request or message is due, in µs since 1970; 0 while paused
	Rows    []rowFrame `json:"rows"`
	Decided int        `json:"decided"`
	Asked   int        `json:"asked"` // calls of Redis for decisions
}

type rowFrame struct {
	Hits    []hit      `json:"hits,omitempty"`
	Left    [][3]int64 `json:"left"`
	Peak    int64      `json:"peak"`
	Passed  int64      `json:"passed"`
	Refused int64      `json:"refused"`
}

// An announcement has the settings of the scene.
type announcement struct {
	ID       string    `json:"id"`
	Settings settings  `json:"settings"`
	Link     string    `json:"link"`
	Fresh    bool      `json:"fresh"`
	Start    int64     `json:"start"`
	Now      int64     `json:"now"`
	Users    []string  `json:"users"`
	Rows     []rowHead `json:"rows"`
}

type rowHead struct {
	Algorithm string `json:"algorithm"`
	Title     string `json:"title"`
	About     string `json:"about"`
	Capacity  int64  `json:"capacity"`
	Meter     bool   `json:"meter"`
	Go        string `json:"go"`
	YAML      string `json:"yaml"`
}

// An Event is a message to the page. Its Name is "scene", "frame", "problem" or "refused".
type Event struct {
	Name string `json:"name"`
	Data any    `json:"data"`
}

// Events returns the events since the last call of Events.
func (s *Scene) Events() (events []Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add := func(name string, data any) { events = append(events, Event{name, data}) }
	if s.announce {
		add("scene", s.announcement())
		s.announce, s.fresh = false, false
	}
	for ; s.past > 0 && !s.set.Redis; s.past-- { // each frame shows the counts of its instant
		s.failed(s.advance(s.now + 2*s.set.Period*second/looksBack))
		s.addFrame(add)
	}
	s.failed(s.frames(add))
	if s.moved {
		s.addFrame(add)
	}
	if s.problem != "" {
		add("problem", s.problem)
		s.problem = ""
	}
	return events
}

// frames catches up. A fast scene gets several frames, so that the picture has the counts of
// instants that are close together.
func (s *Scene) frames(add func(string, any)) error {
	if s.clock == nil || s.set.Paused {
		return s.catchUp()
	}
	until, step := s.due(), s.set.Period*second/looksBack
	for s.now+step < until {
		if err := s.advance(s.now + most); err != nil {
			return err
		}
		s.addFrame(add)
	}
	return s.advance(until)
}

func (s *Scene) addFrame(add func(string, any)) {
	at, left, err := s.look()
	if s.failed(err); err == nil {
		add("frame", s.frame(at, left))
		s.moved = false
	}
}

// failed pauses the scene if err is not nil, unless the scene has ended.
func (s *Scene) failed(err error) {
	if err == nil || s.ctx.Err() != nil {
		return
	}
	s.set.Paused, s.announce, s.moved = true, true, false
	s.problem = silent + " The scene is paused."
}

func (s *Scene) frame(at int64, left [][][3]int64) frame {
	f := frame{Now: at, Decided: s.decided}
	if _, due := s.next(); due < never && !s.set.Paused {
		f.Next = due
	}
	if s.asked != nil {
		f.Asked = s.asked.n
	}
	for i, r := range s.rows {
		f.Rows = append(f.Rows, rowFrame{r.hits, left[i], r.peak, r.passed, r.refused})
		r.hits = nil
	}
	return f
}

func (s *Scene) announcement() announcement {
	a := announcement{ID: s.ID, Settings: s.set, Link: s.set.query(), Fresh: s.fresh, Start: s.start, Now: s.now, Users: users[:s.lanes()]}
	for _, r := range s.rows {
		c := code{kind: r.kind, settings: &s.set}
		a.Rows = append(a.Rows, rowHead{
			Algorithm: r.kind.name, Title: r.kind.title, About: r.kind.about,
			Capacity: r.limit.Capacity(), Meter: r.kind.bucket != nil,
			Go: c.program(), YAML: c.yaml(),
		})
	}
	return a
}

// look asks the store how much every user has left. It returns the instant of the answer
// and, for each algorithm and user, Remaining, and NextAfter and ResetAfter in µs.
func (s *Scene) look() (at int64, left [][][3]int64, err error) {
	var charges []quota.Charge
	for _, r := range s.rows {
		for _, user := range users[:s.lanes()] {
			charges = append(charges, quota.Charge{Rule: "api", Key: user, Limit: r.limit})
		}
	}
	t, err := quota.Peek(s.ctx, s.looks, charges...)
	if err != nil {
		return 0, nil, err
	}
	for lane := range slices.Chunk(t.Decisions, s.lanes()) {
		var row [][3]int64
		for _, d := range lane {
			row = append(row, [3]int64{d.Remaining, d.NextAfter.Microseconds(), d.ResetAfter.Microseconds()})
		}
		left = append(left, row)
	}
	return t.At.UnixMicro(), left, nil
}
