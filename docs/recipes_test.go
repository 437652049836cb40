package docs_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
)

// TestRecipes runs the commands of docs/recipes.md against the program of that page, and
// checks a part of each answer.
func TestRecipes(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	blocks, _ := split(t, "docs/recipes.md")
	text := ""
	for _, b := range blocks {
		if b.info == "yaml" && text == "" {
			text = b.text
		}
	}
	live := overrides.NewLive(overrides.LiveOptions{})
	recorder := watch.NewRecorder(100, 1000)
	store := memstore.New(memstore.Options{})
	rules, err := config.Open("rules.yaml", store, config.Options{
		FS: fstest.MapFS{"rules.yaml": {Data: []byte(text)}}, Overrides: live,
		Limiter: weir.Options{Observe: recorder.Observe},
	})
	if err != nil {
		t.Fatal(err)
	}
	operators, err := admin.New(store, admin.Options{Limiters: rules.Limiters, File: rules, Overrides: live, Recorder: recorder})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/admin/", http.StripPrefix("/admin", operators))
	server := httptest.NewServer(mux)
	defer server.Close()
	for range 110 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", "alice")
		rules.Handler("api")(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	}
	var got []string
	for _, b := range blocks {
		if b.info != "sh" || !strings.HasPrefix(b.text, "curl ") { // TestTrySample of cmd/weir runs weir try
			continue
		}
		out, err := exec.Command("sh", "-c", strings.ReplaceAll(b.text, "http://localhost:9091", server.URL+"/admin")).CombinedOutput()
		if err != nil || strings.Contains(string(out), `"status"`) {
			t.Errorf("%v: %v\n%s\n%s", b, err, b.text, out)
		}
		got = append(got, string(out))
	}
	for i, want := range []string{
		`"quota":1000`, `"quota":100,`, `"remaining":100`, `"refused":false`, `{"rule":"api","key":"alice","count":`, `"key":"alice","reason":"limit","limit":"1m",`,
		`"network":"192.0.2.0/24"`, `"key":"mallory"`, `"were_refused":`, `"version":"` + rules.Version(),
	} {
		if i >= len(got) || !strings.Contains(got[i], want) {
			t.Errorf("block %d: got\n%s\nwant %s", i, strings.Join(got[min(i, len(got)):min(i+1, len(got))], ""), want)
		}
	}
}
