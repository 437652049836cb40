package main

import (
	"crypto/sha256"
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

// writeBills writes a software bill of materials of each binary: https://cyclonedx.org.
func (r *release) writeBills() error {
	for _, platform := range strings.Split(r.platforms, ",") {
		binary := r.binary(platform)
		if err := command(".", []string{"GOWORK=off"}, "go", "tool", "cyclonedx-gomod", "bin", "-json", "-noserial", "-notimestamp", "-output", binary+".cdx.json", "-version", r.version, binary); err != nil {
			return err
		}
	}
	return nil
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
