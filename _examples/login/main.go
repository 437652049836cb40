// Login limits attempts by address and by user name. All limits are charged at once: an
// attempt that one limit refuses spends nothing of the others.
//
//	go run -C _examples ./login
package main

import (
	"crypto/rand"
	"log"
	"net/http"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
)

func main() {
	// User names are hashed, so that someone who can read the store learns no user name.
	// All processes that share a store need the same secret. Here there is only one process.
	secret := make([]byte, 32)
	rand.Read(secret)

	attempts, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Headers: headers.IETF, // shows every limit, and not only the tightest
		Rules: []weir.Rule{
			{
				Name: "address", Key: weir.ByIP(),
				Limits: []weir.Limit{algorithms.SlidingLog(20, time.Minute), algorithms.SlidingLog(5, 3*time.Second)},
			},
			{
				// Anyone who knows a user name can use up its attempts, and the user is
				// then refused too. A short period limits the harm: the attempts come back
				// within 10 s.
				Name: "user", Key: weir.Hashed(secret, weir.Folded(byUser)),
				Limits: []weir.Limit{algorithms.SlidingLog(3, 10*time.Second)},
			},
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	mux := http.NewServeMux()
	mux.Handle("POST /login", bounded(attempts.Handler(http.HandlerFunc(login))))

	anna := map[string]string{"user": "anna", "password": "guess"}
	ben := map[string]string{"user": "ben", "password": "correct"}
	demo.Run("Each address: 20 attempts per minute and 5 per 3 seconds. Each user: 3 per 10 seconds.", mux,
		demo.Request{Method: "POST", Path: "/login", Form: anna, Times: 3, Want: 401, Say: "Somebody guesses the password of anna."},
		demo.Request{Method: "POST", Path: "/login", Form: anna, Want: 429, Say: "The fourth attempt is refused by the limit of the user, and costs the address nothing."},
		demo.Request{Method: "POST", Path: "/login", Form: ben, Times: 2, Say: "So ben, at the same address, has two of the address's five attempts left."},
		demo.Request{Method: "POST", Path: "/login", Form: ben, Want: 429, Say: "The next attempt is refused by the limit of the address: 5 per 3 seconds."},
		demo.Request{Method: "POST", Path: "/login", Form: ben, Wait: true, Say: "After the wait that Retry-After names, a request is allowed."},
	)
}

func byUser(r *http.Request) (string, bool) {
	user := r.PostFormValue("user")
	return user, user != ""
}

// bounded limits the request body to 4096 bytes, because byUser reads it into memory.
func bounded(next http.Handler) http.Handler { return http.MaxBytesHandler(next, 4096) }

func login(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("password") != "correct" { // a real program compares a hash
		http.Error(w, "wrong user or password", http.StatusUnauthorized)
		return
	}
	w.Write([]byte("welcome\n"))
}
