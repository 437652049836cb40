package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

type operatorKey struct{}

// operatorOf returns the user name that an operator has sent, or "". The log line of each change
// by an operator has this name.
func operatorOf(ctx context.Context) string {
	name, _ := ctx.Value(operatorKey{}).(string)
	return name
}

// operatorsOnly passes on requests that have the token, as a bearer token or as the password
// of any user, and answers all other requests with 401. The user name is for the log only: everyone
// who has the token can send any name.
func operatorsOnly(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, given, basic := r.BasicAuth()
		if !basic {
			scheme, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			if strings.EqualFold(scheme, "Bearer") {
				given = strings.TrimSpace(bearer)
			}
		}
		// Digests have equal lengths, so the comparison takes the same time for every token.
		if got := sha256.Sum256([]byte(given)); subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="weir"`)
			http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, name)))
	})
}
