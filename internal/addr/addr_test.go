package addr

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestParseIPv4: parseIPv4 accepts the IPv4 addresses that netip accepts, with a port of at
// most five digits or without one, and nothing else.
func TestParseIPv4(t *testing.T) {
	texts := []string{"", "1.2.3.4", "1.2.3.4:5", "255.255.255.255:65535", "256.1.1.1", "1.2.3.4:65536", "1.2.3.4:", "01.2.3.4", "1.2.3.4:00080", "1.2.3.4:000080",
		"1.2.3", "1.2.3.4.5", "1..2.3", "1.2.3.4 ", "::1", "[1.2.3.4]:5", "1.2.3.4:+5", "0.0.0.0:0", "1.2.3.4:5:6", "1.2.3.4%eth0", "18446744073709551617.2.3.4", "unknown"}
	r := rand.New(rand.NewPCG(1, 1))
	for range 200_000 {
		b := []byte(texts[r.IntN(len(texts))])
		for range r.IntN(3) {
			if len(b) > 0 {
				b[r.IntN(len(b))] = "0123456789.:["[r.IntN(13)]
			}
		}
		s := string(b)
		want, err := netip.ParseAddr(s)
		if err != nil {
			var ap netip.AddrPort
			if ap, err = netip.ParseAddrPort(s); err == nil && s[0] != '[' && len(s) <= len(ap.Addr().String())+6 {
				want = ap.Addr()
			}
		}
		a, n := parseIPv4(s)
		if got := netip.AddrFrom4(a); want.Is4() != (n > 0) || n > 0 && (got != want || s[:n] != want.String()) {
			t.Fatalf("%q: got %v, %d bytes; want %v", s, got, n, want)
		}
	}
}
