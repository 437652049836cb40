package scene

import (
	"net"
	"net/http"
	"testing"

	"github.com/seed83679106/weir"
)

// TestKey: the keys are those of weir.ByIP and weir.ByHeader.
func TestKey(t *testing.T) {
	for _, addr := range []string{"203.0.113.7", "198.51.100.20", "2001:db8:1:2::1", "2001:db8:1:2:ffff::30", "::1"} {
		r := &http.Request{RemoteAddr: net.JoinHostPort(addr, "50000"), Header: http.Header{"Api-Key": {"token " + addr}}}
		for by, key := range map[string]weir.KeyFunc{"ip": weir.ByIP(), "token": weir.ByHeader("Api-Key")} {
			want, _ := key(r)
			if got := Key(by, addr, "token "+addr); got != want {
				t.Errorf("%s of %s: got %q, want %q", by, addr, got, want)
			}
		}
		if got, want := Key("address", addr, ""), "address "+addr; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
