package scene

import (
	"net"
	"net/http"

	"github.com/seed83679106/weir"
)

// Key returns the key under which a request is counted. addr is the address of the client,
// and token is what it sends in the field Api-Key. The argument by is "ip" (weir.ByIP),
// "address" (the whole address, as a naive limiter counts) or "token".
func Key(by, addr, token string) string {
	r := &http.Request{RemoteAddr: net.JoinHostPort(addr, "50000"), Header: http.Header{"Api-Key": {token}}}
	key := weir.ByIP()
	switch by {
	case "address":
		return "address " + addr
	case "token":
		key = weir.ByHeader("Api-Key")
	}
	k, _ := key(r)
	return k
}
