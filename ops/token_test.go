package ops_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/seed83679106/weir/ops"
)

// TestShortToken: without a token, as of a variable that is not set, everyone would be an operator.
func TestShortToken(t *testing.T) {
	for _, token := range []string{"", "fifteen letters"} {
		func() {
			defer func() {
				if p, _ := recover().(string); !strings.Contains(p, "want at least 16") {
					t.Errorf("%q: got the panic %q", token, p)
				}
			}()
			ops.Authenticate(token, nil, http.NotFoundHandler())
		}()
	}
}
