package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	maxScenes = 64
	tick      = 40 * time.Millisecond // between two frames
	silence   = 10 * time.Second      // after which the stream shows that it is there
	patience  = 5 * time.Second       // with a page that does not read
)

// Scenes are those that a page looks at. A scene is forgotten when its stream
// ends.
type scenes struct {
	ctx   context.Context // streams end with it
	redis redis.UniversalClient

	mu   sync.Mutex
	open map[string]*scene
}

// stream opens a scene and tells of it, in server-sent events, until the page
// is gone.
func (p *scenes) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	s := &scene{id: rand.Text(), ctx: r.Context(), redis: p.redis, wake: make(chan struct{}, 1)}
	var err error
	if s.set, err = parse(r.URL.Query()); err != nil {
		refuse(w, "This link is not a scene. "+err.Error()+".")
		return
	}
	if !p.add(s) {
		refuse(w, fmt.Sprintf("All %d scenes are taken. Try again when somebody leaves.", maxScenes))
		return
	}
	defer p.remove(s)
	s.mu.Lock()
	s.failed(s.restart())
	s.mu.Unlock()

	out, ticks, spoke := http.NewResponseController(w), time.NewTicker(tick), time.Now()
	defer ticks.Stop()
	for {
		events := s.events()
		if len(events) == 0 && time.Since(spoke) > silence {
			events = []byte(":\n\n")
		}
		if len(events) > 0 {
			spoke = time.Now()
			out.SetWriteDeadline(spoke.Add(patience))
			if _, err := w.Write(events); err != nil || out.Flush() != nil {
				return
			}
		}
		select {
		case <-ticks.C:
		case <-s.wake:
		case <-r.Context().Done():
			return
		case <-p.ctx.Done():
			return
		}
	}
}

// refuse tells the page why there is no scene. An EventSource shows a script no
// other answer.
func refuse(w http.ResponseWriter, text string) {
	data, _ := json.Marshal(text)
	fmt.Fprintf(w, "event: refused\ndata: %s\n\n", data)
}

func (p *scenes) add(s *scene) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.open) >= maxScenes {
		return false
	}
	p.open[s.id] = s
	return true
}

func (p *scenes) remove(s *scene) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, s.id)
}

// find returns the locked scene of a request, or answers that there is none.
func (p *scenes) find(w http.ResponseWriter, r *http.Request) *scene {
	p.mu.Lock()
	s := p.open[r.PathValue("id")]
	p.mu.Unlock()
	if s == nil {
		http.Error(w, "There is no such scene.", http.StatusNotFound)
		return nil
	}
	s.mu.Lock()
	return s
}

// command does what a control of the page asks for.
func (p *scenes) command(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "The form can't be read.", http.StatusBadRequest)
		return
	}
	s := p.find(w, r)
	if s == nil {
		return
	}
	defer s.mu.Unlock()
	err := s.catchUp()
	if err == nil {
		switch r.PostForm.Get("do") {
		case "hit":
			err = s.hit(you)
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
			set, mistake := parse(r.PostForm)
			if mistake != nil {
				http.Error(w, mistake.Error(), http.StatusBadRequest)
				return
			}
			err = s.change(set)
		default:
			http.Error(w, "do is unknown.", http.StatusBadRequest)
			return
		}
	}
	s.failed(err)
	s.tell()
	w.WriteHeader(http.StatusNoContent)
}

// tell has the stream send what there is.
func (s *scene) tell() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
