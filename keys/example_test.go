package keys_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/memstore"
)

var secret = []byte("random bytes, the same in all processes")

// One address may try many users, and one user may be tried from many addresses, so a login has a
// limit for each. The user name is in the JSON body, and the store gets only a hash of it.
func Example() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
		{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(100, time.Hour)}},
		{Name: "user", Key: keys.Hashed(secret, keys.ByJSON("user", 4096)), Limits: []weir.Limit{algorithms.SlidingLog(2, time.Hour)}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	login := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	for _, user := range []string{"ada", "Ada", "ADA", "bob"} {
		w := httptest.NewRecorder()
		login.ServeHTTP(w, httptest.NewRequest("POST", "/login", strings.NewReader(`{"user": "`+user+`"}`)))
		fmt.Println(user, w.Code)
	}
	// Output:
	// ada 200
	// Ada 200
	// ADA 429
	// bob 200
}
