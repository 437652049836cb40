package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// A mismatch is what a queue knows about a server that it could never use: only one of server
// and client speaks TLS. Neither side says so: the server closes the connection or waits, so
// that only another attempt to connect, in the other way, can tell.
type mismatch struct {
	client *redis.Options // of the queue; nil if nobody can tell
	found  error          // what the last check found
	looked time.Time      // when it began
}

// untilNextLook is the shortest time between two checks.
const untilNextLook = time.Second

// explain returns the error of a connection that failed, or what explains it better.
func (q *queue) explain(err error) error {
	q.mu.Lock()
	never := q.answered.IsZero() && q.client != nil && hangsUp(err)
	look := never && time.Since(q.looked) > untilNextLook
	if look {
		q.looked = time.Now()
	}
	q.mu.Unlock()
	if look {
		what := otherWay(q.client)
		q.mu.Lock()
		if q.found = nil; what != "" {
			q.found = &unusable{what, err}
		}
		q.mu.Unlock()
	}
	if never {
		return q.mismatchOr(err)
	}
	return err
}

// mismatchOr returns the mismatch that is known of a server that has never answered, or err.
func (q *queue) mismatchOr(err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.found != nil && q.answered.IsZero() {
		return q.found
	}
	return err
}

// hangsUp reports whether a connection failed as it does at a server that speaks otherwise: the
// server closed it, or did not answer.
func hangsUp(err error) bool {
	return err != nil && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, redis.ErrClosed) && !isAnswer(err)
}

// otherWay connects to the server of a client, with TLS if the client has none, and otherwise
// without. It returns what is wrong, or "" if it cannot tell.
func otherWay(o *redis.Options) string {
	if o.Network != "tcp" {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), lateness)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, o.Network, o.Addr)
	if err != nil {
		return ""
	}
	defer conn.Close()
	end, _ := ctx.Deadline()
	_ = conn.SetDeadline(end)
	if o.TLSConfig == nil {
		err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) // nothing is sent over it
		if err == nil || isAlert(err) {
			return "the server speaks TLS, and the client does not"
		}
		return ""
	}
	var first [1]byte
	if _, err := conn.Write([]byte("PING\r\n")); err == nil {
		if _, err := conn.Read(first[:]); err == nil && (first[0] == '+' || first[0] == '-') {
			return "the server does not speak TLS, and the client does"
		}
	}
	// The alert of a server that requires a certificate comes after the handshake of the client,
	// which often sees only the end of the connection.
	secure, err := (&tls.Dialer{NetDialer: &dialer, Config: o.TLSConfig}).DialContext(ctx, o.Network, o.Addr)
	if err == nil {
		defer secure.Close()
		_ = secure.SetDeadline(end)
		_, err = secure.Read(first[:])
	}
	return refusedTLS(err)
}
