package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// An unusable error wraps quota.ErrUnusable, because the cause does not go away by itself.
type unusable struct {
	what string // what is wrong or missing
	err  error  // the cause; may be nil
}

func (u *unusable) Error() string {
	if u.err == nil {
		return "redisstore: " + u.what
	}
	return "redisstore: " + u.what + ": " + u.err.Error()
}

func (u *unusable) Is(target error) bool { return target == quota.ErrUnusable }
func (u *unusable) Unwrap() error        { return u.err }

var (
	// The expression outage finds the codes of error replies about outages, which end without a
	// change of the setup. If the error occurred in a script, Redis before 7.0 puts the code in the
	// middle of the text.
	outage = regexp.MustCompile(`(^|[: ]-)(OOM|LOADING|READONLY|CLUSTERDOWN|MISCONF|MASTERDOWN|BUSY|NOREPLICAS|TRYAGAIN|MOVED|ASK|NOSCRIPT) ` +
		`|^ERR max number of clients`)

	command    = regexp.MustCompile(`(?:the|command) '([\w|]+)'`)
	called     = regexp.MustCompile(`call\('([A-Z]+)'`)
	scriptLine = regexp.MustCompile(`user_script:(\d+)`)
	lineKey    = regexp.MustCompile(`KEYS\[(\d+)\]`) // in a line of direct.lua or logs.lua
	arguments  = regexp.MustCompile(`(?s),? with args beginning with: .*`)
)

// misconfigurations contains texts of error replies, in lower case, and what each text means. These
// texts show that the store cannot work with the setup of Redis.
var misconfigurations = [...]struct{ text, what string }{
	{"wrongpass", "the user or the password is wrong, or the user is disabled"},
	{"noauth", "Redis requires a password"},
	{"without any password configured", "Redis has no password, and the client sends one"},
	{"client sent auth, but no password", "Redis has no password, and the client sends one"},
	{"access one of the keys", "USER lacks ~PREFIX*"},
	{"noperm", "USER lacks +RIGHT"},
	{"acl failure", "USER lacks +RIGHT"},
	{"user executing the script can't", "USER lacks +RIGHT"},
	{"not allowed from script", "COMMAND is not allowed in scripts"},
	{"unknown redis command", "the server has no command COMMAND"},
	{"unknown command", "the server has no command COMMAND"},
	{"unexpected flag in script shebang", "the server refuses what Options.LockKeys adds to scripts"},
	{"user_script:1: unexpected symbol near '#'", "the server refuses what Options.LockKeys adds to scripts"},
	{"variable 'struct'", "the server has no Lua library struct, as miniredis has none"},
	{"error compiling script", "the server cannot compile the scripts"},
	{"after non deterministic commands", "the server is older than Redis 6.0"},
	{"cluster support disabled", "the server is no cluster, and the client is for a cluster"},
	{"db index", "the server has no database of this number"},
	{"select is not allowed", "a cluster has only the database 0"},
	{"all sentinels specified in configuration are unreachable: redis: nil", "the Sentinels have no master of this name"},
	{"denied redis is running in protected mode", protectedMode},
}

const protectedMode = "Redis is in protected mode"

// explain adds an explanation to an error. It adds "Redis answers" to error replies. If waiting
// does not help, the result wraps quota.ErrUnusable and names what is wrong.
func (s *Store) explain(err error) error {
	switch u := (*unusable)(nil); {
	case err == nil || errors.As(err, &u):
		return err
	case !queue.IsAnswer(err):
		if what := refusedTLS(err); what != "" {
			return &unusable{what, err}
		}
		if strings.HasPrefix(err.Error(), "redisstore: ") {
			return err
		}
		return fmt.Errorf("redisstore: %w", err) // a network error, whose text does not name the package yet
	}
	if text := err.Error(); arguments.MatchString(text) { // the arguments include the key
		err = errors.New(arguments.ReplaceAllString(text, ""))
	}
	if what := s.misconfigured(err); what != "" {
		return &unusable{what, err}
	}
	return fmt.Errorf("redisstore: Redis answers: %w", err)
}

// misconfigured returns what is wrong with the setup of Redis according to an error reply, or "" if
// the reply does not concern the setup.
func (s *Store) misconfigured(err error) string {
	if redis.HasErrorPrefix(err, "MOVED") && s.queue != nil {
		return "the server is a node of a cluster, and the client is not for a cluster"
	}
	text := err.Error()
	name := "a command"
	if m := called.FindStringSubmatch(text); m != nil { // blame has quoted the line
		name = m[1]
	} else if m := command.FindStringSubmatch(text); m != nil {
		name = strings.ToUpper(m[1])
	}
	return s.meaning(text, name)
}

// meaning returns what an error reply with the given text to the given command says about the setup
// of Redis, or "" if the text does not concern the setup.
func (s *Store) meaning(text, command string) string {
	if outage.MatchString(text) {
		return ""
	}
	text = strings.ToLower(text)
	for _, m := range misconfigurations {
		if strings.Contains(text, m.text) {
			what := strings.NewReplacer("USER", s.user(), "PREFIX", s.prefix, "RIGHT", strings.ToLower(command), "COMMAND", command).
				Replace(m.what)
			if what == "TIME is not allowed in scripts" {
				what += ", so Options.SendTime is needed"
			}
			return what
		}
	}
	return ""
}

// user describes the Redis user of the client.
func (s *Store) user() string {
	if o := optionsOf(s.rdb); o != nil && o.Username != "" {
		return fmt.Sprintf("user %q", o.Username)
	}
	return "the default user"
}

// If err shows that the server and the client can never agree on TLS, refusedTLS returns the
// reason. Otherwise, it returns "".
func refusedTLS(err error) string {
	var header tls.RecordHeaderError
	var unverified *tls.CertificateVerificationError
	switch {
	case errors.As(err, &header):
		return "the server does not speak TLS, and the client does"
	case errors.As(err, &unverified):
		return "the client does not trust the certificate of the server"
	case isAlert(err):
		return "the server refuses the TLS of the client"
	}
	return ""
}

// isAlert reports whether err is a TLS alert from a server, such as "certificate required". Package
// crypto/tls does not export the type of alerts.
func isAlert(err error) bool {
	remote := (*net.OpError)(nil)
	return errors.As(err, &remote) && remote.Op == "remote error" && !strings.Contains(err.Error(), "internal error")
}

// blame explains an error in the script of e. It quotes the failing line, because the algorithm may
// be a user's own, and users never see the whole script. Unless the setup of Redis is wrong, blame
// also names the rule and the limit whose state is probably damaged (see classify): those of the
// key in the failing line, or the first. The error text from Redis quotes the script, but neither
// the key nor the value.
func (s *Store) blame(e *eval, err error) error {
	foreign := strings.Contains(err.Error(), "WRONGTYPE ")
	if !queue.IsAnswer(err) || isOutage(err) || !foreign && !scriptLine.MatchString(err.Error()) {
		return err
	}
	quoted := quoteLine(e.text, strings.Join(e.algorithms, ", "), err)
	c, n := &e.ts[0].Charges[0], 0
	if m := lineKey.FindStringSubmatch(quoted.Error()); m != nil {
		if n, _ = strconv.Atoi(m[1]); 0 < n && n <= len(e.values) {
			c = &e.ts[0].Charges[e.values[n-1].charges[0]]
		}
	}
	what := s.misconfigured(quoted)
	switch {
	case what != "":
		return &unusable{what, quoted}
	case foreign:
		what = "Redis answers: " + err.Error()
	default:
		what = unreadable + ": " + quoted.Error()
	}
	if n == 0 && len(e.values) > 1 {
		what = "or another limit of the request: " + what
	}
	return faultOf(c, what)
}

// If a Lua error contains a line number, quoteLine adds that line of the script to the error.
func quoteLine(lua, of string, err error) error {
	m := scriptLine.FindStringSubmatch(err.Error())
	if m == nil || !queue.IsAnswer(err) {
		return err
	}
	lines := strings.Split(lua, "\n")
	n, _ := strconv.Atoi(m[1])
	if n < 1 || n > len(lines) {
		return err
	}
	return fmt.Errorf("%w (line %d of the script of %s: %s)", err, n, of, strings.TrimSpace(lines[n-1]))
}

// undecided reports whether Redis has answered without making a decision, for a reason other than
// an outage.
func undecided(err error) bool {
	f := (*fault)(nil)
	return errors.As(err, &f) || queue.IsAnswer(err) && !isOutage(err)
}

// isOutage reports whether an error reply from Redis is about an outage.
func isOutage(err error) bool {
	answer := redis.Error(nil)
	return errors.As(err, &answer) && outage.MatchString(answer.Error())
}
