package redisstore

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/seed83679106/weir"
)

// say adds "Redis answers" to an error reply of Redis. It returns other errors unchanged.
func say(err error) error {
	if !isAnswer(err) {
		return err
	}
	return fmt.Errorf("redisstore: Redis answers: %w", err)
}

var scriptLine = regexp.MustCompile(`user_script:(\d+):`)

// blame explains an error of Lua. It quotes the failing line of the script, because the
// algorithm may be a user's own, and the user never sees the whole script. It also names the
// rule and the limit of c, because their state is probably damaged: no state that a store has
// written makes Lua fail. The error text of Redis quotes the script, but neither the key nor
// the value.
func (x *script) blame(c *weir.Charge, err error) error {
	if !isAnswer(err) {
		return err
	}
	text := err.Error()
	if m := scriptLine.FindStringSubmatch(text); m != nil {
		lines := strings.Split(x.text, "\n")
		if n, _ := strconv.Atoi(m[1]); 1 <= n && n <= len(lines) {
			err = fmt.Errorf("%w (line %d of the script of %s: %s)", err, n, strings.Join(x.algorithms, ", "), strings.TrimSpace(lines[n-1]))
		}
	}
	if strings.HasPrefix(text, "ERR user_script:") {
		return fmt.Errorf("%w: %v", fault(c, unreadable), err)
	}
	return err
}
