package scene

import "net/netip"

// Key returns the key under which a request is counted. addr is the address of the client,
// and token is what it sends in the field Api-Key. The argument by is "ip" (as weir.ByIP, which
// is not called, because it needs net/http), "address" (the whole address, as a naive limiter
// counts) or "token" (weir.ByHeader).
func Key(by, addr, token string) string {
	switch by {
	case "address":
		return "address " + addr
	case "token":
		return token
	}
	ip, err := netip.ParseAddr(addr)
	if err != nil || ip.Is4() {
		return addr
	}
	network, _ := ip.Prefix(64) // cannot fail: an IPv6 address has 128 bits
	return network.String()
}
