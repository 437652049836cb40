package keys

import (
	"net/http"
	"net/netip"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
)

// ByIPPrefix is like [weir.ByIP], but groups addresses into networks of the given sizes. The
// arguments ipv4 and ipv6 are prefix lengths in bits: 1 to 32 for ipv4, and 1 to 128 for ipv6. A
// client that owns a larger network gets a separate quota for each network of this size within the
// larger one.
func ByIPPrefix(ipv4, ipv6 int, trusted ...netip.Prefix) weir.KeyFunc {
	size := addr.CheckedSizes("keys: ByIPPrefix", ipv4, ipv6)
	proxies := addr.NewProxies("keys: ByIPPrefix", addr.ForwardedFor, trusted)
	return func(r *http.Request) (string, bool) { return proxies.Key(r, size), true }
}

// ByForwarded is like [weir.ByIP], but for proxies that write the Forwarded field (RFC 7239)
// instead of X-Forwarded-For. It never reads X-Forwarded-For, because a proxy that sets only one of
// these fields may forward the other exactly as the client sent it.
//
// ByForwarded reads the field's elements from right to left, as long as each of them comes from a
// trusted proxy. It stops at an element whose "for" parameter is hidden ("_gazonk"), "unknown",
// missing or not an address. The key is then the address of the proxy that sent the element. Ports
// are ignored.
func ByForwarded(trusted ...netip.Prefix) weir.KeyFunc {
	proxies := addr.NewProxies("keys: ByForwarded", addr.Forwarded, trusted)
	return func(r *http.Request) (string, bool) { return proxies.Key(r, addr.Usual), true }
}

// An AddrFunc returns the address from which a request was sent; ok is false if the address is
// unknown. An AddrFunc must be safe for concurrent use.
type AddrFunc func(r *http.Request) (addr netip.Addr, ok bool)

// ClientAddr returns an AddrFunc that finds the client's address in the same way as [weir.ByIP].
// Its result ok is false if the client has no address, as on a Unix socket.
func ClientAddr(trusted ...netip.Prefix) AddrFunc {
	return addr.NewProxies("keys: ClientAddr", addr.ForwardedFor, trusted).Addr
}

// ForwardedAddr returns an AddrFunc that finds the client's address in the same way as
// [ByForwarded]. Its result ok is false if the client has no address, as on a Unix socket.
func ForwardedAddr(trusted ...netip.Prefix) AddrFunc {
	return addr.NewProxies("keys: ForwardedAddr", addr.Forwarded, trusted).Addr
}

// ByAddr is like [ByIPPrefix], but it obtains the client's address by calling find. If find returns
// no address, the request has no key.
func ByAddr(find AddrFunc, ipv4, ipv6 int) weir.KeyFunc {
	size := addr.CheckedSizes("keys: ByAddr", ipv4, ipv6)
	if find == nil {
		panic("keys: ByAddr: find is nil")
	}
	return func(r *http.Request) (string, bool) {
		a, ok := find(r)
		if !ok || !a.IsValid() {
			return "", false
		}
		return size.Key(addr.Outside(a), ""), true
	}
}
