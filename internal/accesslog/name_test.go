package accesslog

import "testing"

// TestYAMLName: a name that YAML would read as something else is quoted.
func TestYAMLName(t *testing.T) {
	for name, want := range map[string]string{
		"client": "client", "per-ip_2": "per-ip_2", "[a #b": `"[a #b"`, "a: b": `"a: b"`, "12": `"12"`, "null": `"null"`, `a"b`: `"a\"b"`,
	} {
		if got := yamlName(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}
