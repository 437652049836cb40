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

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/playground/scene"
	"github.com/seed83679106/weir/redisstore"
)

const (
	maxScenes = 64
	tick      = 40 * time.Millisecond // between two frames
	silence   = 10 * time.Second      // after this time without events the stream sends a comment, to show that it is alive
	patience  = 5 * time.Second       // how long a page may leave the stream unread
)

// scenes has the open scenes that run in the server. A scene ends with its stream.
type scenes struct {
	ctx   context.Context // all streams end when ctx ends
	redis redis.UniversalClient

	mu   sync.Mutex
	open map[string]*scene.Scene
}

// store returns a store in Redis whose keys belong to one scene.
func (p *scenes) store() (weir.Store, error) {
	return redisstore.New(p.redis, redisstore.Options{Prefix: "weir.playground." + rand.Text() + ":", Timeout: Timeout})
}

// stream opens a scene and sends its events to the page, until the page is closed.
func (p *scenes) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	s, err := scene.New(r.Context(), rand.Text(), r.URL.Query(), p.store)
	if err != nil {
		send(w, scene.Event{Name: "refused", Data: "This link is not a scene. " + err.Error() + "."})
		return
	}
	if !p.add(s) {
		send(w, scene.Event{Name: "refused", Data: fmt.Sprintf("All %d scenes are taken. Try again later.", maxScenes)})
		return
	}
	defer p.remove(s)

	out, ticks, spoke := http.NewResponseController(w), time.NewTicker(tick), time.Now()
	defer ticks.Stop()
	for {
		events := s.Events()
		if silent := time.Since(spoke) > silence; silent || len(events) > 0 {
			spoke = time.Now()
			out.SetWriteDeadline(spoke.Add(patience))
			if send(w, events...) != nil || out.Flush() != nil {
				return
			}
		}
		select {
		case <-ticks.C:
		case <-s.Wake:
		case <-r.Context().Done():
			return
		case <-p.ctx.Done():
			return
		}
	}
}

// send writes server-sent events, or a comment if there are none. Errors are events too,
// because the EventSource of a browser shows neither the status nor the body of a response.
func send(w http.ResponseWriter, events ...scene.Event) error {
	text := []byte{}
	for _, e := range events {
		data, _ := json.Marshal(e.Data) // never fails for structs of numbers and strings
		text = fmt.Appendf(text, "event: %s\ndata: %s\n\n", e.Name, data)
	}
	if len(events) == 0 {
		text = []byte(":\n\n")
	}
	_, err := w.Write(text)
	return err
}

func (p *scenes) add(s *scene.Scene) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.open) >= maxScenes {
		return false
	}
	p.open[s.ID] = s
	return true
}

func (p *scenes) remove(s *scene.Scene) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, s.ID)
}

// find returns the scene of a request. If there is none, it answers 404 and returns nil.
func (p *scenes) find(w http.ResponseWriter, r *http.Request) *scene.Scene {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.open[r.PathValue("id")]
	if s == nil {
		http.Error(w, "There is no such scene.", http.StatusNotFound)
	}
	return s
}

// command executes a command that a control of the page sends.
func (p *scenes) command(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "The form can't be read.", http.StatusBadRequest)
		return
	}
	s := p.find(w, r)
	if s == nil {
		return
	}
	if err := s.Do(r.PostForm); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// request serves a request of another program, such as curl. The request goes through every
// algorithm of the scene, and the response is that of the algorithm in the path.
func (p *scenes) request(w http.ResponseWriter, r *http.Request) {
	if s := p.find(w, r); s != nil {
		s.ServeHTTP(w, r)
	}
}

// answers sends the response to the latest request, in every dialect.
func (p *scenes) answers(w http.ResponseWriter, r *http.Request) {
	if s := p.find(w, r); s != nil {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(s.Answers(r.PathValue("algorithm")))
	}
}
