package addr

import (
	"net/netip"
	"strings"
)

// Hostname returns a host in the form that weir.ByHeader documents.
func Hostname(host string) string {
	if strings.HasPrefix(host, "[") {
		address, _, _ := strings.Cut(host[1:], "]")
		if ip, err := netip.ParseAddr(address[:min(len(address), 64)]); err == nil {
			return "[" + ip.String() + "]"
		}
		return strings.ToLower(host[:1+len(address)])
	}
	host, _, _ = strings.Cut(host, ":")
	return strings.ToLower(strings.TrimRight(host, "."))
}
