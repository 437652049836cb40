package redisstore_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/redisstore"
)

// TestSentinel: a master that dies or hangs is replaced by a replica, and the
// store finds it.
func TestSentinel(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds until Sentinels agree")
	}
	failover(t, func(t *testing.T) set {
		s := redistest.Sentinel(t)
		o := redisstore.ClientOptions(0, s.Addrs()...)
		o.MasterName = redistest.MasterName
		return set{options: o, key: "k", kill: s.Master.Kill, pause: s.Master.Pause, resume: s.Master.Resume}
	})
}
