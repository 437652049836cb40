package scene

import "fmt"

// fits returns how many requests of a client pass if they come together. In a queue, the last of
// them waits longest.
func (c code) fits() int64 {
	if c.bucket != nil {
		return c.burst()
	}
	return c.Quota
}

// test returns a Go test of the program: what fits at once passes, one more is refused, and another
// client has its own quota.
func (c code) test() string {
	request, first, second, other := `r.Header.Set("X-API-Key", client)`, "secret-1", "secret-2", "http.StatusOK"
	switch {
	case c.Whose == "account":
		other = "http.StatusTooManyRequests"
	case c.byAddress() && c.Proxy:
		request, first, second = "r.RemoteAddr = \"10.0.0.1:50000\" // the proxy\n\t\t\tr.Header.Set(\"X-Forwarded-For\", client)", "192.0.2.1", "192.0.2.2"
	case c.byAddress():
		request, first, second = `r.RemoteAddr = client + ":50000"`, "192.0.2.1", "192.0.2.2"
	}
	send := fmt.Sprintf(`		for i := range %d {
			if code := get(%q); code != http.StatusOK {
				t.Fatalf("request %%d: got %%d, want 200", i+1, code)
			}
		}
		if code := get(%[2]q); code != http.StatusTooManyRequests {
			t.Errorf("one more: got %%d, want 429", code)
		}
`, c.fits(), first)
	if c.queue {
		send = fmt.Sprintf(`		codes := make(chan int)
		for range %d { // together, because each waits
			go func() { codes <- get(%q) }()
		}
		refused := 0
		for range %[1]d {
			if <-codes == http.StatusTooManyRequests {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("%%d were refused, want 1", refused)
		}
`, c.fits()+1, first)
	}
	if c.Whose == "account" && c.queue { // the queue is empty by then
		other = "http.StatusOK"
	}
	s := fmt.Sprintf(`func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while the test sends requests
		site := site(memstore.New(memstore.Options{}))
		get := func(client string) int {
			r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
			%s
			site.ServeHTTP(w, r)
			return w.Code
		}
%s		if code := get(%q); code != %s {
			t.Errorf("with %[3]s: got %%d, want %%d", code, %[4]s)
		}
	})
}
`, request, send, second, other)
	if c.open() || c.closed() {
		status := map[bool]string{true: "http.StatusServiceUnavailable", false: "http.StatusOK"}[c.closed()]
		s += fmt.Sprintf(`
func TestRedisDown(t *testing.T) {
	r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
	r.Header.Set("X-API-Key", "secret-1")
	site(down{}).ServeHTTP(w, r)
	if w.Code != %s {
		t.Errorf("got %%d, want %%d", w.Code, %[1]s)
	}
}

type down struct{}

func (down) Take(context.Context, *quota.Transaction) error { return syscall.ECONNREFUSED }
`, status)
	}
	return file(s)
}
