package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed83679106/weir/internal/test/redistest"
)

// TestTry: weir try prints what the limits of a file would have refused, and fails if it cannot
// replay the log.
func TestTry(t *testing.T) {
	dir := t.TempDir()
	limits := writeFile(t, filepath.Join(dir, "limits.yaml"), `
trusted-proxies: [10.0.0.1]
limits:
- {name: client, algorithm: fixed-window, config: [{limit: 2, period: 60}]}
- {name: tenant, key: {first-of: [header:X-Tenant, ip]}, config: [{limit: 5, period: 60}]}
`)
	tenants := writeFile(t, filepath.Join(dir, "tenants.yaml"), "limits: [{name: tenant, key: header:X-Tenant, config: [{limit: 5, period: 60}]}]")
	bad := writeFile(t, filepath.Join(dir, "bad.yaml"), "limits: [{name: tenant}]")
	var lines strings.Builder
	for i := range 5 {
		fmt.Fprintf(&lines, "10.0.0.1 - - [25/Nov/2026:10:00:0%d +0100] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\" \"203.0.113.9\"\n", i)
	}
	log := writeFile(t, filepath.Join(dir, "access.log"), lines.String())
	long := writeFile(t, filepath.Join(dir, "long.log"), lines.String()+strings.Replace(lines.String(), "10:00", "10:02", 5))
	empty := writeFile(t, filepath.Join(dir, "empty.log"), "")
	mixed := writeFile(t, filepath.Join(dir, "mixed.log"), lines.String()+strings.Repeat("?\n", 2))
	balanced := writeFile(t, filepath.Join(dir, "balanced.log"), strings.Repeat("10.9.9.9 - - [25/Nov/2026:10:00:00 +0100] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n", 90)+
		strings.Repeat("10.9.9.8 - - [25/Nov/2026:10:00:00 +0100] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n", 20))
	const answer = "refused: 3 (60.0 %)\n\nrule client (2 in 1m0s by fixed-window)\n  5 requests, 2 allowed, refused 3 (60.0 %)\n" +
		"  first refusal 2026-11-25 10:00:02 +0100, last 2026-11-25 10:00:04 +0100\n  refused most: \"203.0.113.9\" 3\n\n" +
		"rule tenant uses header X-Tenant, which the log does not have: not replayed\n"
	for _, tt := range []struct {
		args, stdin    string
		status         int
		stdout, stderr string
	}{
		{"-access-log " + log + " " + limits, "", 0, answer, ""},
		{limits + " -access-log " + log, "", 0, answer, ""}, // a flag after the file
		{"-access-log - " + limits, lines.String(), 0, answer, ""},
		{"-suggest -access-log " + long + " " + limits, "", 0, "    config: [{limit: 5, period: 1m, algorithm: fixed-window}]\n", ""},
		{"-suggest -access-log " + long + " " + limits, "", 0, "replay the log with them", ""},
		{"-suggest -access-log " + log + " " + limits, "", 0, "no suggestion for 2 in 1m0s by fixed-window, which has a longer period than the log\n", ""},
		{"-suggest -access-log " + empty + " " + limits, "", 1, "", "empty.log: the log has no request that can be read"},
		{"-access-log " + mixed + " " + limits, "", 1, answer, "mixed.log: 28.6 % of the lines could not be read"},
		{"-access-log " + balanced + " " + limits, "", 0, "at least 90 requests come from 10.9.9.9: if that is a proxy or a load balancer, list it in trusted-proxies", ""},
		{"-access-log " + log + " " + tenants, "", 1, "rule tenant uses header X-Tenant", "access.log: no rule can be replayed"},
		{"-access-log " + empty + " " + limits, "", 1, "", "empty.log: the log has no request that can be read"},
		{"-access-log " + log + "x " + limits, "", 1, "", "no such file"},
		{"-access-log " + log + " " + bad, "", 1, "", "a rule has no config"},
		{"-access-log " + dir + " " + limits, "", 1, "", "is a directory"},
		{limits, "", 2, "", "-access-log is missing"},
		{"-access-log " + log, "", 2, "", "0 limits files; want one"},
		{"-access-log " + log + " -max-keys 0 " + limits, "", 2, "", "-max-keys is 0"},
		{"-access-log " + log + " " + limits + " " + limits, "", 2, "", "2 limits files; want one"},
		{"-help", "", 0, "", "-access-log"},
	} {
		var stdout, stderr bytes.Buffer
		status := try(t.Context(), strings.Fields(tt.args), strings.NewReader(tt.stdin), &stdout, &stderr)
		if status != tt.status || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("weir try %s: got status %d, %s, %s; want %d, %s, %s", tt.args, status, &stdout, &stderr, tt.status, tt.stdout, tt.stderr)
		}
	}
}

// TestTrySample: the page shows what the command prints about the sample log.
func TestTrySample(t *testing.T) {
	var stdout, stderr bytes.Buffer
	status := try(t.Context(), []string{"-access-log", "testdata/access.log", "limits.yaml"}, nil, &stdout, &stderr)
	page, err := os.ReadFile("../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	want := "```\n" + stdout.String() + "```\n"
	if status != 0 || !strings.Contains(string(page), want) {
		t.Errorf("got status %d, %s%s; docs/recipes.md has other text", status, &stdout, &stderr)
	}
}

// TestLogsOfServers: weir try reads the logs that nginx and Caddy write of the same requests, and a
// client cannot choose the time or the address of its line.
func TestLogsOfServers(t *testing.T) {
	servers := map[string]func(t *testing.T, address, log string){
		"nginx": func(t *testing.T, address, log string) {
			program, dir := find(t, "nginx"), t.TempDir()
			conf := "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log " + log + ";\n"
			for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				conf += kind + "_temp_path " + kind + ";\n"
			}
			conf += "server { listen " + address + "; location / { return 204; } }\n}\n"
			spawn(t, nil, program, "-p", dir, "-c", writeFile(t, filepath.Join(dir, "nginx.conf"), conf), "-e", "stderr")
		},
		"caddy": func(t *testing.T, address, log string) {
			program, dir := find(t, "caddy"), t.TempDir()
			conf := "{\n\tadmin off\n}\nhttp://" + address + " {\n\tlog {\n\t\toutput file " + log + "\n\t}\n\trespond 204\n}\n"
			spawn(t, []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}, program, "run", "--config", writeFile(t, filepath.Join(dir, "Caddyfile"), conf), "--adapter", "caddyfile")
		},
	}
	for name, run := range servers {
		t.Run(name, func(t *testing.T) {
			dir, address := t.TempDir(), redistest.FreeAddr()
			log := filepath.Join(dir, "access.log")
			run(t, address, log)
			up := func() bool {
				resp, err := http.Get("http://" + address + "/")
				if err != nil {
					return false
				}
				resp.Body.Close()
				return true
			}
			eventually(t, "the server answers", up)
			for range 7 {
				r, err := http.NewRequest("GET", "http://"+address+`/a"b?c`, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.SetBasicAuth(`a] "b [01/Jan/2020:00:00:00 +0000]`, "")
				r.Header.Set("User-Agent", `a "b" [01/Jan/2020:00:00:00 +0000] "GET / HTTP/1.1"`)
				resp, err := from(t, "127.0.0.9").Do(r)
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			eventually(t, "the log has all lines", func() bool {
				text, _ := os.ReadFile(log)
				return strings.Count(string(text), "\n") >= 8
			})
			limits := writeFile(t, filepath.Join(dir, "limits.yaml"), "limits: [{name: client, algorithm: anchored-window, config: [{limit: 1, period: 1h}]}]")
			var stdout, stderr bytes.Buffer
			status := try(t.Context(), []string{"-access-log", log, limits}, nil, &stdout, &stderr)
			for _, want := range []string{"8 requests from ", "8 requests, 2 allowed, refused 6", `refused most: "127.0.0.9" 6`} {
				if status != 0 || !strings.Contains(stdout.String(), want) {
					t.Errorf("got status %d, %s%s; want %s", status, &stdout, &stderr, want)
				}
			}
			if strings.Contains(stdout.String(), "could not be read") {
				t.Error(stdout.String())
			}
		})
	}
}
