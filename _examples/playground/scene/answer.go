//go:build !story

package scene

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/headers"
)

// dialects has each dialect under the name that links use for it.
var dialects = []struct {
	name    string
	dialect headers.Dialect
}{
	{"x-ratelimit", headers.XRateLimit},
	{"ietf", headers.IETF},
	{"github", headers.GitHub},
	{"openai", headers.OpenAI},
	{"anthropic", headers.Anthropic},
	{"twitter", headers.Twitter},
	{"draft-07", headers.Draft07},
	{"draft-06", headers.Draft06},
	{"none", headers.None},
}

// ServeHTTP sends one request through the scene. The answer is that of a limiter with the
// {algorithm} of the path. The query parameter "headers" names the dialect of the answer.
func (s *Scene) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := cmp.Or(r.URL.Query().Get("headers"), dialects[0].name)
	for _, d := range dialects {
		if d.name != name {
			continue
		}
		row, err := s.hitRow(r.PathValue("algorithm"))
		switch {
		case err != nil:
			http.Error(w, silent, http.StatusServiceUnavailable)
		case row == nil:
			http.Error(w, "The scene does not have this algorithm.", http.StatusNotFound)
		default:
			row.answer(w, d.dialect)
		}
		return
	}
	http.Error(w, "The parameter headers names no known dialect.", http.StatusBadRequest)
}

// hitRow sends one request through the scene. It returns a copy of the row of an algorithm
// after the request. If the scene has no row for the algorithm, hitRow sends no request and
// returns nil.
func (s *Scene) hitRow(algorithm string) (*row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rowOf(algorithm) == nil {
		return nil, nil
	}
	defer s.tell()
	if err := errors.Join(s.catchUp(), s.hit(you, 1, 0)); err != nil {
		s.failed(err)
		return nil, err
	}
	return s.rowOf(algorithm), nil
}

// rowOf returns a copy of the row of an algorithm, or nil if the scene has no such row.
func (s *Scene) rowOf(algorithm string) *row {
	i := slices.IndexFunc(s.rows, func(r *row) bool { return r.kind.name == algorithm })
	if i < 0 {
		return nil
	}
	row := *s.rows[i]
	return &row
}

// answer writes the HTTP response to the last decision of the row. A Limiter with the limit
// of the row writes it; its store returns that decision. The Limiter gets a new request,
// because the caller's request may carry the decisions of another Limiter.
func (r *row) answer(w http.ResponseWriter, d headers.Dialect) {
	limiter, err := weir.New(told{r.last}, weir.Options{
		Headers: d,
		Logger:  slog.New(slog.DiscardHandler), // it would warn that a Limiter is made for each answer
		Rules:   []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{r.limit}}},
	})
	if err != nil {
		http.Error(w, "The limit of the scene is not valid.", http.StatusInternalServerError)
		return
	}
	req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "hello")
	})).ServeHTTP(w, req)
}

// An Answer is the HTTP response to the latest request, in one dialect.
type Answer struct {
	Dialect string `json:"dialect"`
	Text    string `json:"text"`
}

// Answers returns the HTTP response that an algorithm gives to the latest request, once in
// every dialect. The list is empty if there was no request.
func (s *Scene) Answers(algorithm string) []Answer {
	s.mu.Lock()
	row := s.rowOf(algorithm)
	s.mu.Unlock()
	all := []Answer{}
	if row == nil || len(row.last.Decisions) == 0 {
		return all
	}
	for _, d := range dialects {
		p := recorder{header: http.Header{}, status: http.StatusOK}
		row.answer(&p, d.dialect)
		all = append(all, Answer{d.name, p.String()})
	}
	return all
}

// A recorder is a ResponseWriter that keeps the response. String returns the response.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (p *recorder) Header() http.Header         { return p.header }
func (p *recorder) WriteHeader(status int)      { p.status = status }
func (p *recorder) Write(b []byte) (int, error) { return p.body.Write(b) }

func (p *recorder) String() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\n", p.status, http.StatusText(p.status))
	p.header.Write(&b)
	fmt.Fprintf(&b, "\n%s", p.body.String())
	return strings.TrimSpace(strings.ReplaceAll(b.String(), "\r", ""))
}
