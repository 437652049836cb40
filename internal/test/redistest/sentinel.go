package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// MasterName is the name under which the Sentinels know the master.
const MasterName = "m"

// SentinelSet is a master with two replicas and three Sentinels. Master and Replicas have
// the servers by their roles at the start. Current returns the present master.
type SentinelSet struct {
	Master    *Proc
	Replicas  []*Proc
	Sentinels []*Proc
}

// Sentinel starts a SentinelSet. It returns when every Sentinel knows the others, sees that
// both replicas follow, and would find a quorum. A master is considered down after 500 ms
// without an answer.
func Sentinel(t testing.TB) *SentinelSet {
	t.Helper()
	slow(t, "Sentinels need seconds to agree")
	s := &SentinelSet{Master: Server(t)}
	for range 2 {
		s.Replicas = append(s.Replicas, Server(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(s.Master.port)))
	}
	for range 3 {
		q := launch(t, func(dir string, port int) []string {
			conf := filepath.Join(dir, "sentinel.conf") // a Sentinel writes to this file
			// A failed election is repeated after twice failover-timeout. If
			// failover-timeout is below 2 s, a promotion may run out of time.
			text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %[3]s 127.0.0.1 %[4]d 2\n"+
				"sentinel down-after-milliseconds %[3]s 500\nsentinel failover-timeout %[3]s 2000\nsentinel parallel-syncs %[3]s 2\n",
				port, dir, MasterName, s.Master.port)
			if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
				t.Fatalf("redistest: %v", err)
			}
			return []string{conf, "--sentinel"}
		})
		s.Sentinels = append(s.Sentinels, q)
		// Sentinels find each other by messages that they publish. They publish often at
		// first, so that the start is fast. An old Redis refuses this and starts slower.
		q.text("SENTINEL", "DEBUG", "publish-period", "100", "info-period", "200")
	}
	follow(t, s.Master, s.Replicas...)
	for _, q := range s.Sentinels {
		if err := wait(func() bool {
			return strings.Contains(q.text("INFO", "sentinel"), "status=ok,address="+s.Master.Addr()+",slaves=2,sentinels=3") &&
				strings.Count(q.text("SENTINEL", "REPLICAS", MasterName), "master-link-status ok") == 2 &&
				strings.HasPrefix(q.text("SENTINEL", "CKQUORUM", MasterName), "OK")
		}); err != nil {
			t.Fatalf("redistest: Sentinel: %v: %s", err, q.text("INFO", "sentinel"))
		}
	}
	for _, q := range s.Sentinels { // the defaults of Redis, so that failovers take their usual time
		q.text("SENTINEL", "DEBUG", "publish-period", "2000", "info-period", "10000")
	}
	return s
}

// Addrs returns the addresses of the Sentinels.
func (s *SentinelSet) Addrs() []string { return addrs(s.Sentinels) }

// Current returns the master according to the first Sentinel that answers, or nil.
func (s *SentinelSet) Current() *Proc {
	for _, q := range s.Sentinels {
		v, _ := q.do(pollTimeout, []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName})
		a, _ := v.([]any)
		if len(a) != 2 {
			continue
		}
		addr := net.JoinHostPort(fmt.Sprint(a[0]), fmt.Sprint(a[1]))
		for _, p := range append([]*Proc{s.Master}, s.Replicas...) {
			if p.Addr() == addr {
				return p
			}
		}
	}
	return nil
}
