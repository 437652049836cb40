package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// measure runs one row. When measure returns, all clients have ended.
func measure(ctx context.Context, r *row, redis string, buffer, ramp time.Duration) (*summary, error) {
	recv, err := receive()
	if err != nil {
		return nil, err
	}
	defer recv.close()

	ctx, cancel := context.WithCancel(ctx)
	var clients []*process
	defer func() {
		cancel()
		for _, p := range clients {
			_ = p.cmd.Wait()
		}
	}()
	for i := range r.Processes {
		j := job{Row: *r, Share: r.Requests / r.Processes, Redis: redis, URL: recv.url, Buffer: buffer, Ramp: ramp}
		if i < r.Requests%r.Processes {
			j.Share++
		}
		p, err := start(ctx, &j)
		if err != nil {
			return nil, err
		}
		clients = append(clients, p)
	}
	for _, p := range clients {
		if line, err := p.out.ReadString('\n'); err != nil {
			return nil, fmt.Errorf("a client is not ready: %w: %s", err, line)
		}
	}

	s := &summary{}
	watch := watchStalls()
	begin := time.Now()
	for _, p := range clients {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			return nil, err
		}
	}
	for _, p := range clients {
		var t tally
		if err := json.NewDecoder(p.out).Decode(&t); err != nil {
			return nil, fmt.Errorf("a client has not reported: %w", err)
		}
		s.add(&t)
	}
	s.time = time.Since(begin)
	s.stall = watch()
	s.judge(recv.arrivals(), r)
	return s, nil
}

// A process is a running client. It ends when its context ends or its input is closed. The
// input is closed if this program is killed.
type process struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func start(ctx context.Context, j *job) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, clientCommand, string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{cmd, in, bufio.NewReader(out)}, nil
}

// watchStalls begins to measure how long this machine delays a goroutine that could run: how
// late the ticks of a ticker are. The function stop ends the measurement and returns the
// longest delay. A delay as long as the buffer spoils a run.
func watchStalls() (stop func() time.Duration) {
	const period = time.Millisecond
	done, most := make(chan struct{}), make(chan time.Duration)
	go func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		var longest time.Duration
		for last := time.Now(); ; {
			select {
			case <-tick.C:
				now := time.Now()
				longest = max(longest, now.Sub(last)-period)
				last = now
			case <-done:
				most <- longest
				return
			}
		}
	}()
	return func() time.Duration {
		close(done)
		return <-most
	}
}
