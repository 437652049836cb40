package redisstore

import (
	"fmt"

	"github.com/redis/go-redis/v9"
)

// meanings are what Redis says by the first word of an error, for the one line
// that an operator reads.
var meanings = [...]struct{ prefix, means string }{
	{"WRONGPASS", "Redis refuses the password"},
	{"NOAUTH", "Redis wants a password"},
	{"NOPERM", "Redis forbids its user a command or a key"},
	{"OOM", "Redis is out of memory"},
	{"MISCONF", "Redis cannot save and takes no writes"},
	{"READONLY", "this Redis is a replica"},
	{"LOADING", "Redis is loading its data"},
	{"BUSY", "Redis is busy with a script"},
	{"NOREPLICAS", "Redis has too few replicas and takes no writes"},
	{"MASTERDOWN", "this Redis is a replica without its master"},
	{"CLUSTERDOWN", "the cluster is down"},
	{"WRONGTYPE", "a key holds what no store has written"},
}

// say puts into words what Redis has answered.
func say(err error) error {
	if !isAnswer(err) {
		return err
	}
	for _, m := range meanings {
		if redis.HasErrorPrefix(err, m.prefix) {
			return fmt.Errorf("redisstore: %s: %w", m.means, err)
		}
	}
	return fmt.Errorf("redisstore: Redis answers: %w", err)
}
