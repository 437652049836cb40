package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
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

// dialects by the names of a link.
var dialects = []struct {
	name    string
	dialect weir.Dialect
}{
	{"x-ratelimit", weir.XRateLimit},
	{"ietf", weir.IETF},
	{"github", weir.GitHub},
	{"openai", weir.OpenAI},
	{"anthropic", weir.Anthropic},
	{"twitter", weir.Twitter},
	{"draft-07", weir.Draft07},
	{"draft-06", weir.Draft06},
	{"none", weir.NoHeaders},
}

// request is one that comes from elsewhere, such as curl: it goes through every
// algorithm like all others, and gets the answer of one.
func (p *scenes) request(w http.ResponseWriter, r *http.Request) {
	s := p.find(w, r)
	if s == nil {
		return
	}
	err := s.catchUp()
	if err == nil {
		err = s.hit(you)
	}
	s.failed(err)
	s.tell()
	row := s.rowOf(r.PathValue("algorithm"))
	s.mu.Unlock()
	if row == nil || err != nil {
		http.Error(w, "There is no such algorithm, or no Redis.", http.StatusNotFound)
		return
	}
	for _, d := range dialects {
		if name := r.FormValue("headers"); d.name == name || name == "" {
			row.answer(w, r, d.dialect)
			return
		}
	}
	http.Error(w, "headers is unknown.", http.StatusBadRequest)
}

// rowOf returns a copy of a row, or nil.
func (s *scene) rowOf(algorithm string) *row {
	for _, r := range s.rows {
		if r.kind.name == algorithm {
			row := *r
			return &row
		}
	}
	return nil
}

// answer is what a limiter of that row answers, given what was decided last.
func (r *row) answer(w http.ResponseWriter, req *http.Request, d weir.Dialect) {
	limiter, err := weir.New(told{r.last}, weir.Options{
		Headers: d,
		Rules:   []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{r.limit}}},
	})
	if err != nil {
		http.Error(w, "There is no such limit.", http.StatusInternalServerError)
		return
	}
	limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "hello")
	})).ServeHTTP(w, req)
}

// An answer is what the latest request got, in one dialect.
type answer struct {
	Dialect string `json:"dialect"`
	Text    string `json:"text"`
}

// answers has a Limiter answer the latest request, once in every dialect.
func (p *scenes) answers(w http.ResponseWriter, r *http.Request) {
	s := p.find(w, r)
	if s == nil {
		return
	}
	row := s.rowOf(r.PathValue("algorithm"))
	s.mu.Unlock()
	all := []answer{}
	if row != nil && len(row.last.Decisions) > 0 {
		for _, d := range dialects {
			rec := httptest.NewRecorder()
			row.answer(rec, r, d.dialect)
			response := rec.Result()
			response.ContentLength = int64(rec.Body.Len())
			text, err := httputil.DumpResponse(response, true)
			if err != nil {
				http.Error(w, "There is no answer.", http.StatusInternalServerError)
				return
			}
			all = append(all, answer{d.name, strings.TrimSpace(string(bytes.ReplaceAll(text, []byte("\r"), nil)))})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(all)
}
