package ops_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/seed83679106/weir/ops"
)

// TestBadToken: without a token, as of a variable that is not set, everyone would be an operator.
// With a token that ends as a file does, nobody would be.
func TestBadToken(t *testing.T) {
	for token, want := range map[string]string{
		"": "want at least 16", "fifteen letters": "want at least 16",
		"sixteen letters.\n": "call strings.TrimSpace", " sixteen letters.": "call strings.TrimSpace",
	} {
		func() {
			defer func() {
				if p, _ := recover().(string); !strings.Contains(p, want) {
					t.Errorf("%q: got the panic %q", token, p)
				}
			}()
			ops.Authenticate(token, nil, http.NotFoundHandler())
		}()
	}
}
