package redisstore

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// A mismatch finds out why a server has never answered a command. Perhaps only one of client and
// server uses TLS, or the server closes connections at HELLO. Neither side reports such a mismatch,
// because the server only closes the connection or waits. To detect it, the client must connect in
// a different way.
type mismatch struct {
	client redis.UniversalClient
	mu     sync.Mutex
	what   string    // what the last check found; "" if nothing
	looked time.Time // when the last check began
}

const untilNextLook = time.Second // the minimum time between two checks
const lookTime = 250 * time.Millisecond

// explain returns the error of a failed connection or, if there is a mismatch, a more detailed
// error.
func (m *mismatch) explain(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, redis.ErrClosed) || queue.IsAnswer(err) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.looked) > untilNextLook {
		m.looked = time.Now()
		m.what = otherWay(m.client)
	}
	switch m.what {
	case "":
		return err
	case tooMany:
		return fmt.Errorf("redisstore: Redis answers: %s: %w", tooMany, err)
	}
	return &unusable{m.what, err}
}

// tooMany is how Redis refuses a connection beyond its maxclients, which it then closes. The client
// often sees only that the connection is closed.
const tooMany = "ERR max number of clients reached"

// otherWay connects to a client's server without TLS if the client uses TLS, and with TLS if the
// client does not. If this shows that the client's TLS setting is wrong, otherWay returns a text
// that says so, and otherwise "".
func otherWay(client redis.UniversalClient) string {
	single, ok := client.(*redis.Client)
	if !ok || single.Options().Network != "tcp" {
		return ""
	}
	o := single.Options()
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
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
		err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) // no data is sent over the connection
		if err == nil || isAlert(err) {
			return "the server speaks TLS, and the client does not"
		}
		return closesAtHello(ctx, o.Addr)
	}
	var first [1]byte
	if _, err := conn.Write([]byte("PING\r\n")); err == nil {
		if _, err := conn.Read(first[:]); err == nil && (first[0] == '+' || first[0] == '-') {
			return "the server does not speak TLS, and the client does"
		}
	}
	// A server that requires a client certificate sends the alert after the client's handshake, and
	// the client often sees only that the connection ends.
	secure, err := (&tls.Dialer{NetDialer: &dialer, Config: o.TLSConfig}).DialContext(ctx, o.Network, o.Addr)
	if err == nil {
		defer secure.Close()
		_ = secure.SetDeadline(end)
		_, err = secure.Read(first[:])
	}
	return refusedTLS(err)
}

// closesAtHello returns what is wrong if a server answers GET but closes the connection at HELLO,
// the first command that go-redis sends on each connection.
func closesAtHello(ctx context.Context, addr string) string {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return ""
	}
	defer conn.Close()
	end, _ := ctx.Deadline()
	_ = conn.SetDeadline(end)
	answer := bufio.NewReader(conn)
	send := func(command string) (line string, err error) {
		if _, err := conn.Write([]byte(command)); err != nil {
			return "", err
		}
		return answer.ReadString('\n') // the rest of the answer does not matter
	}
	switch line, err := send("*2\r\n$3\r\nGET\r\n$1\r\nx\r\n"); {
	case strings.HasPrefix(line, "-"+tooMany):
		return tooMany
	case strings.HasPrefix(line, "-DENIED "): // and closes the connection, too
		return protectedMode
	case err != nil:
		return ""
	}
	if _, err := send("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n"); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return "the server closes connections at HELLO, as the proxy twemproxy does; the client must connect to Redis itself"
	}
	return ""
}
