package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A service is a process that answers the calls of Envoy.
type service struct {
	name    string
	only    string // the key that it is measured with; empty means all
	command func(ports [4]string) *exec.Cmd

	cmd     *exec.Cmd
	conns   []*grpc.ClientConn
	clients []ratelimitpb.RateLimitServiceClient // one for each connection, as each worker of Envoy has one
}

// start starts the process, and waits until it answers.
func (s *service) start() error {
	var ports [4]string
	for i := range ports { // a free port could be taken until the process listens; then it does not answer
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer ln.Close()
		_, ports[i], _ = net.SplitHostPort(ln.Addr().String())
		ln.Close()
	}
	s.cmd = s.command(ports)
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for range 2 {
		conn, err := grpc.NewClient("127.0.0.1:"+ports[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		s.conns, s.clients = append(s.conns, conn), append(s.clients, ratelimitpb.NewRateLimitServiceClient(conn))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, c := range s.clients {
		if _, err := c.ShouldRateLimit(ctx, request("nothing", "x"), grpc.WaitForReady(true)); err != nil {
			s.stop()
			return fmt.Errorf("%s does not answer: %w", s.name, err)
		}
	}
	return nil
}

func (s *service) stop() {
	for _, c := range s.conns {
		c.Close()
	}
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

func request(key, value string) *ratelimitpb.RateLimitRequest {
	return &ratelimitpb.RateLimitRequest{Domain: "bench", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: value}}}}}
}

// call makes a call on one of the connections, and reports whether it is within its limit.
func (s *service) call(i int, r *ratelimitpb.RateLimitRequest) (ok bool, err error) {
	resp, err := s.clients[i%len(s.clients)].ShouldRateLimit(context.Background(), r)
	if err != nil {
		return false, fmt.Errorf("%s: %w", s.name, err)
	}
	return resp.OverallCode == ratelimitpb.RateLimitResponse_OK, nil
}

// cpu returns the time that the process has used the processors.
func (s *service) cpu() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // the name may have spaces
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
