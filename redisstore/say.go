package redisstore

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

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

var scriptLine = regexp.MustCompile(`user_script:(\d+):`)

// explainError quotes the line of the script that an error of Lua is about. The algorithm
// may be a user's own, and the user never sees the whole script.
func (x *script) explainError(err error) error {
	m := scriptLine.FindStringSubmatch(err.Error())
	if m == nil || !isAnswer(err) {
		return err
	}
	n, _ := strconv.Atoi(m[1])
	lines := strings.Split(x.text, "\n")
	if n < 1 || n > len(lines) {
		return err
	}
	return fmt.Errorf("%w (line %d of the script of %s: %s)", err, n, strings.Join(x.algorithms, ", "), strings.TrimSpace(lines[n-1]))
}
