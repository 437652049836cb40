package weirgrpc

import (
	"net"
	"testing"
)

// TestAddress: the address of a peer is that of net.
func TestAddress(t *testing.T) {
	for _, a := range []net.Addr{
		&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}, &net.TCPAddr{IP: net.IP{192, 0, 2, 1}, Port: 65535},
		&net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 80}, &net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0", Port: 80},
		&net.TCPAddr{Port: 80}, (*net.TCPAddr)(nil), &net.UnixAddr{Name: "/s"},
	} {
		if got := address(a); got != a.String() {
			t.Errorf("got %s, want %s", got, a)
		}
	}
}
