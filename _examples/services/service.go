package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket"
	"github.com/go-chi/chi/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/contrib/weirgrpc"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/quota"
)

//go:embed rules.yaml
var files embed.FS

// A service is one replica with five doors: the routes of web are REST (/items), a WebSocket
// (/chat) and streamed answers (/complete), calls is gRPC, and work does jobs.
type service struct {
	web   http.Handler
	calls *grpc.Server
	jobs  chan job
	store weir.Store
	admit weirgrpc.Admit // of jobs
}

func newService(store weir.Store) (*service, error) {
	rules, err := config.Open("rules.yaml", store, config.Options{FS: files})
	if err != nil {
		return nil, err
	}
	// Rules with Settle are taken from the file when the program starts.
	var settled []weir.Rule
	for _, r := range rules.Rules() {
		switch r.Name {
		case "tokens":
			r.Settle = weir.ChargeUsed
			settled = append(settled, r)
		case "account", "running":
			settled = append(settled, r)
		}
	}
	tokens, err := weir.New(store, weir.Options{Rules: settled})
	if err != nil {
		return nil, err
	}

	r := chi.NewRouter()
	r.With(rules.Handler("account", "running", "web")).Get("/items/{id}", item)
	r.With(rules.Handler("running")).Get("/chat", chat(rules.Admit("account", "messages")))
	r.With(tokens.Handler).Post("/complete", complete)

	calls := rules.Admit("account", "running", "calls")
	unary, stream := weirgrpc.ServerInterceptors(calls, nil)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer()) // it stands for a service of yours
	return &service{web: r, calls: server, jobs: make(chan job), store: store, admit: rules.Admit("account", "running", "jobs")}, nil
}

func item(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "item", chi.URLParam(r, "id")) }

// chat answers each message of a WebSocket, and charges it under the keys of the request that has
// opened the connection.
func chat(admit weirgrpc.Admit) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return // Accept has answered
		}
		defer conn.CloseNow()
		for {
			_, message, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			answer := "you said " + string(message)
			a, err := admit(r)
			if err != nil {
				answer = "not now: " + wait(err)
			}
			err = conn.Write(r.Context(), websocket.MessageText, []byte(answer))
			if a != nil {
				a.Done(weir.Outcome{})
			}
			if err != nil {
				return
			}
		}
	}
}

// complete streams an answer as a language model does, as long as the user has tokens.
func complete(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range 50 {
		if _, err := weir.Draw(r.Context(), "tokens", 1); err != nil {
			fmt.Fprintf(w, "event: end\ndata: %s\n\n", wait(err))
			return
		}
		fmt.Fprintf(w, "data: word %d\n\n", i)
		http.NewResponseController(w).Flush()
	}
	fmt.Fprint(w, "event: end\ndata: complete\n\n")
}

// A job comes from a queue. Its user is known because the message in the queue says so.
type job struct {
	user string
	done chan error
}

// work does jobs until ctx ends. A job becomes the request that has its keys.
func (s *service) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-s.jobs:
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/jobs", nil)
			if err == nil {
				r.Header.Set("X-User", j.user)
				err = s.do(r)
			}
			j.done <- err
		}
	}
}

func (s *service) do(r *http.Request) error {
	a, err := s.admit(r)
	if err != nil {
		return err // a real worker puts the job back for as long as the error says
	}
	defer a.Done(weir.Outcome{})
	return nil // the work
}

// wait says when a refused user may come again.
func wait(err error) string {
	var limited *quota.LimitedError
	if !errors.As(err, &limited) || limited.RetryAfter() == quota.Never {
		return "try again later"
	}
	return fmt.Sprintf("try again in %v", limited.RetryAfter().Round(time.Minute))
}
