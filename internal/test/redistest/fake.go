package redistest

import (
	"bufio"
	"net"
	"strconv"
	"testing"
)

// Fake starts a server that speaks the protocol of Redis, for tests of replies that no Redis
// here gives. It writes what answer returns, such as "+OK\r\n", for each command, and closes
// the connection if answer returns "". It answers commands of several connections at the same
// time, and ends in the Cleanup of the test. Fake returns its address.
func Fake(t testing.TB, answer func(args []string) string) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go Answer(conn, answer)
		}
	}()
	return ln.Addr().String()
}

// Answer answers the commands of one connection, which may be one end of a net.Pipe, as Fake does.
func Answer(conn net.Conn, answer func(args []string) string) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		command, err := readReply(r) // a command has the form of a reply
		list, ok := command.([]any)
		if err != nil || !ok {
			return
		}
		args := make([]string, len(list))
		for i := range list {
			args[i], _ = list[i].(string)
		}
		reply := answer(args)
		if _, err := conn.Write([]byte(reply)); err != nil || reply == "" {
			return
		}
	}
}

// TLS starts a redis-server that also listens with TLS, and requires client certificates that
// the certificate in the file cert has signed. TLS returns the address of that listener.
func TLS(t testing.TB, cert, key string) (addr string) {
	t.Helper()
	var secure string
	launch(t, func(dir string, port int) []string {
		secure = strconv.Itoa(port + 10000) // the cluster bus of a node: see nextPort
		return []string{
			"--port", strconv.Itoa(port), "--tls-port", secure, "--bind", "127.0.0.1", "--dir", dir, "--save", "",
			"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert,
		}
	})
	return net.JoinHostPort("127.0.0.1", secure)
}
