package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"

	"github.com/seed83679106/weir"
)

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
	name := cmp.Or(r.URL.Query().Get("headers"), dialects[0].name)
	for _, d := range dialects {
		if d.name != name {
			continue
		}
		if row := p.hit(w, r); row != nil {
			row.answer(w, r, d.dialect)
		}
		return
	}
	http.Error(w, "headers is unknown.", http.StatusBadRequest)
}

// hit sends one request through a scene and returns the row that is to answer
// it, or answers that there is none.
func (p *scenes) hit(w http.ResponseWriter, r *http.Request) *row {
	s := p.find(w, r)
	if s == nil {
		return nil
	}
	defer s.mu.Unlock()
	defer s.tell()
	algorithm := r.PathValue("algorithm")
	if s.rowOf(algorithm) == nil {
		http.Error(w, "The scene has no such algorithm.", http.StatusNotFound)
		return nil
	}
	err := s.catchUp()
	if err == nil {
		err = s.hit(you)
	}
	if err != nil {
		s.failed(err)
		http.Error(w, "Redis does not answer.", http.StatusServiceUnavailable)
		return nil
	}
	return s.rowOf(algorithm)
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
