package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// buildBinaries builds the service for every platform. Builds of the tag with the same
// version of Go and these flags are identical.
func (r *release) buildBinaries() error {
	for _, platform := range strings.Split(r.platforms, ",") {
		if err := r.build(platform, r.binary(platform)); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) build(platform, to string, flags ...string) error {
	system, processor, _ := strings.Cut(platform, "/")
	env := append(r.goEnv(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor)
	args := append([]string{"build", "-trimpath", "-buildvcs=true", "-ldflags=-s", "-o", to}, flags...)
	return command(filepath.Join(r.clone, "cmd", "weir"), env, "go", append(args, ".")...)
}

func (r *release) binary(platform string) string {
	name := "weir-" + strings.ReplaceAll(platform, "/", "-")
	if strings.HasPrefix(platform, "windows/") {
		name += ".exe"
	}
	return filepath.Join(r.out, name)
}

// writeBills writes a software bill of materials of each binary: https://cyclonedx.org/docs/1.6/json.
func (r *release) writeBills() error {
	for _, platform := range strings.Split(r.platforms, ",") {
		bill, err := r.bill(r.binary(platform))
		if err == nil {
			err = os.WriteFile(r.binary(platform)+".cdx.json", bill, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"` // https://github.com/package-url/purl-spec
	Hashes  []hash `json:"hashes,omitempty"`
}

func newComponent(kind, name, version string, sha256 []byte) component {
	c := component{Type: kind, Name: name, Version: version, PURL: "pkg:golang/" + name + "@" + strings.ReplaceAll(version, "+", "%2B") + "?type=module"}
	c.Ref = c.PURL
	if sha256 != nil {
		c.Hashes = []hash{{"SHA-256", fmt.Sprintf("%x", sha256)}}
	}
	return c
}

// bill returns the bill of a binary: the modules that the go command has written into it, each with its hash
// in go.sum, and the standard library.
func (r *release) bill(binary string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	program := newComponent("application", info.Main.Path, r.version, sum[:])
	libraries := []component{newComponent("library", "stdlib", strings.TrimPrefix(info.GoVersion, "go"), nil)}
	for _, m := range info.Deps {
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
		if err != nil || m.Replace != nil {
			return nil, fmt.Errorf("%s: the hash of %s is %q, and %v replaces it: %w", binary, m.Path, m.Sum, m.Replace, err)
		}
		libraries = append(libraries, newComponent("library", m.Path, m.Version, sum))
	}
	var refs []string
	for _, l := range libraries {
		refs = append(refs, l.Ref)
	}
	return json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":     map[string]any{"component": program},
		"components":   libraries,
		"dependencies": []any{map[string]any{"ref": program.Ref, "dependsOn": refs}},
	}, "", "  ")
}

// writeSums writes SHA256SUMS for sha256sum -c.
func (r *release) writeSums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b), e.Name())
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
