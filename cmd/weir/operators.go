package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

type operatorKey struct{}

// operatorOf returns the user name that an operator has sent, or "". The log line of each change
// by an operator has this name.
func operatorOf(ctx context.Context) string {
	name, _ := ctx.Value(operatorKey{}).(string)
	return name
}

// wrongTokens is how many wrong tokens an address may send: 10 at once, and one more every 6 s.
var wrongTokens = algorithms.GCRA(10, time.Minute)

// operatorsOnly passes on requests that have the token, as a bearer token or as the password
// of any user, and answers all other requests with 401. The user name is for the log only: everyone
// who has the token can send any name.
//
// Wrong tokens are logged, at most one a second. An address (of IPv6, a /64 network) that sends
// more than wrongTokens gets a 429 until it may try again, also for the right token, because
// guessing would otherwise go on.
func operatorsOnly(token string, logger *slog.Logger, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	guesses, address, wrong := memstore.New(memstore.Options{MaxKeys: 10_000}), weir.ByIP(), sparse.Logger(logger)
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
		right := subtle.ConstantTimeCompare(got[:], want[:]) == 1
		if given != "" { // a browser sends no token before it has asked for one
			key, _ := address(r)
			guess := quota.Charge{Rule: "weir-admin", Key: key, Limit: wrongTokens, Cost: 1}
			if right {
				guess.Cost = 0 // looks, and spends nothing
			}
			t := quota.Transaction{Charges: []quota.Charge{guess}}
			if err := guesses.Take(r.Context(), &t); err == nil {
				if d := &t.Decisions[0]; !d.Allowed || d.Remaining == 0 && right {
					w.Header().Set("Retry-After", strconv.FormatInt(int64((d.NextAfter+time.Second-1)/time.Second), 10))
					http.Error(w, "too many wrong tokens", http.StatusTooManyRequests)
					return
				}
			}
			if !right {
				wrong.Warn("weir: wrong token on the address for operators", "addr", r.RemoteAddr)
			}
		}
		if !right {
			w.Header().Set("WWW-Authenticate", `Basic realm="weir"`)
			http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, name)))
	})
}
