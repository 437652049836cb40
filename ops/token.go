package ops

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// MinToken is the smallest length of a token, in bytes. Trying all tokens of this length is
// infeasible.
const MinToken = 16

// operatorKey is the context key for the name of an operator.
type operatorKey struct{}

// Operator returns the user name that an operator has sent to Authenticate, or "". Set
// admin.Options.Who to this function. Use the name only in the log, because everyone who has the
// token can send any name.
func Operator(ctx context.Context) string {
	name, _ := ctx.Value(operatorKey{}).(string)
	return name
}

// wrongTokens limits the wrong tokens that an address may send: a burst of 10, and then one more
// every 6 s.
var wrongTokens = algorithms.GCRA(10, time.Minute)

// peer returns the address of a peer, or its /64 network. It is called with a request that has no
// header fields. Otherwise a token that was sent through a proxy would cause a warning about
// trusted-proxies.
var peer = weir.ByIP()

// Authenticate forwards requests that have the token, as a bearer token or as the password of any user,
// and answers all other requests with 401. Use at least MinToken random bytes, encoded as text.
//
// Wrong tokens are logged, at most one a second. An address (or, for IPv6, a /64 network) that
// sends more than 10 wrong tokens a minute gets a 429 for each further wrong token. The right
// token always works; otherwise, a script with an old token would lock out the operators behind
// the same address. Guessing is therefore not slowed down, so only the length of a random token
// protects against it.
//
// Authenticate panics if the token is shorter than MinToken bytes, for example because an
// environment variable is not set, or if it begins or ends with white space, as the content of a
// file does.
func Authenticate(token string, logger *slog.Logger, next http.Handler) http.Handler {
	if fault := faultOf(token); fault != "" {
		panic("ops: the token of the operators " + fault)
	}
	want := sha256.Sum256([]byte(token))
	guesses, wrong := memstore.New(memstore.Options{MaxKeys: 10_000}), sparse.Logger(logger)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, given, basic := r.BasicAuth()
		if !basic {
			scheme, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			if strings.EqualFold(scheme, "Bearer") {
				given = strings.TrimSpace(bearer)
			}
		}
		// Digests have equal lengths, so the comparison takes the same time for every token.
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, name)))
			return
		}
		if given != "" { // a browser sends no token before its user has entered one
			key, _ := peer(&http.Request{RemoteAddr: r.RemoteAddr})
			d, err := quota.Allow(r.Context(), guesses, quota.Charge{Rule: "operators", Key: key, Limit: wrongTokens, Cost: 1})
			if err == nil && !d.Allowed {
				w.Header().Set("Retry-After", strconv.FormatInt(period.Seconds(d.RetryAfter), 10))
				http.Error(w, "too many wrong tokens", http.StatusTooManyRequests)
				return
			}
			wrong.Warn("ops: wrong token of an operator", "addr", r.RemoteAddr)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="weir", charset="UTF-8"`)
		http.Error(w, "the operators' token is missing or wrong", http.StatusUnauthorized)
	})
}

// faultOf returns why a token cannot be used, or "".
func faultOf(token string) string {
	switch {
	case len(token) < MinToken:
		return fmt.Sprintf("has %d bytes; want at least %d", len(token), MinToken)
	case strings.TrimSpace(token) != token:
		return "begins or ends with white space, as a file does, which operators would have to send; call strings.TrimSpace"
	}
	return ""
}
