package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A replica is a service that runs, and what its clients need.
type replica struct {
	*service
	addr string // of web
	conn *grpc.ClientConn
	stop func()
}

// run serves s on two ports of this machine until ctx ends or stop is called. stop returns when
// nothing uses the store any more.
func run(ctx context.Context, s *service) (*replica, error) {
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	calls, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(calls.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	var running sync.WaitGroup // http.Server does not wait for WebSockets
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Done()
		s.web.ServeHTTP(w, r)
	})}
	go server.Serve(web)
	go s.calls.Serve(calls)
	running.Go(func() { s.work(ctx) })
	stop := func() {
		end()
		conn.Close()
		server.Close()
		s.calls.Stop()
		running.Wait()
	}
	return &replica{s, web.Addr().String(), conn, stop}, nil
}

// A door is a way to ask a replica for something. try reports whether the service did it.
type door struct {
	name string
	try  func(ctx context.Context, r *replica, user string) (passed bool, err error)
}

var doors = []door{
	{"web", func(ctx context.Context, r *replica, user string) (bool, error) {
		passed, _, err := send(ctx, http.MethodGet, "http://"+r.addr+"/items/1", user)
		return passed, err
	}},
	{"calls", func(ctx context.Context, r *replica, user string) (bool, error) {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-user", user)
		_, err := grpc_health_v1.NewHealthClient(r.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if status.Code(err) == codes.ResourceExhausted {
			return false, nil
		}
		return err == nil, err
	}},
	{"messages", func(ctx context.Context, r *replica, user string) (bool, error) {
		conn, _, err := websocket.Dial(ctx, "ws://"+r.addr+"/chat", &websocket.DialOptions{HTTPHeader: http.Header{"X-User": {user}}})
		if err != nil {
			return false, err
		}
		defer conn.CloseNow()
		if err := conn.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			return false, err
		}
		_, answer, err := conn.Read(ctx)
		return string(answer) == "you said hello", err
	}},
	{"tokens", func(ctx context.Context, r *replica, user string) (bool, error) {
		passed, answer, err := send(ctx, http.MethodPost, "http://"+r.addr+"/complete", user)
		tokens.Add(int64(strings.Count(answer, "data: word ")))
		return passed, err
	}},
	{"jobs", func(ctx context.Context, r *replica, user string) (bool, error) {
		j := job{user, make(chan error, 1)}
		select {
		case r.jobs <- j:
			return <-j.done == nil, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}},
}

// tokens counts the words of all answers.
var tokens atomic.Int64

// send sends a request of a user. passed is false after a 429.
func send(ctx context.Context, method, url, user string) (passed bool, body string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return false, "", err
	}
	r.Header.Set("X-User", user)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusTooManyRequests {
		return false, "", fmt.Errorf("%s: %s: %s", url, res.Status, b)
	}
	return res.StatusCode == http.StatusOK, string(b), err
}

// flood has a user try each door of the replicas n times, all doors at once and four times at once
// each. It returns how often each door let the user pass.
func flood(ctx context.Context, replicas []*replica, user string, n int) (passed map[string]int, err error) {
	passed = map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, d := range doors {
		for worker := range 4 {
			all.Go(func() {
				for i := worker; i < n; i += 4 {
					ok, failed := d.try(ctx, replicas[i%len(replicas)], user)
					mu.Lock()
					if ok {
						passed[d.name]++
					}
					if failed != nil {
						err = fmt.Errorf("%s: %w", d.name, failed)
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	return passed, err
}
