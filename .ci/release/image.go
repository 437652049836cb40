package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// writeImage writes out/image, an OCI image layout for linux on each processor, and the same as one
// file, out/weir-image.tar. The image has the same content as the image that the Dockerfile of cmd/weir builds: the service, including the time
// zones, and the certificates of authorities. The image has no shell and runs as an unprivileged
// user.
func (r *release) writeImage() error {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range strings.Split(r.platforms, ",") {
		system, processor, _ := strings.Cut(platform, "/")
		if system != "linux" {
			continue
		}
		image, err := r.image(platform)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: system, Architecture: processor},
		}})
	}
	dir := filepath.Join(r.out, "image")
	if _, err := layout.Write(dir, index); err != nil {
		return err
	}
	var files []file
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		files = append(files, file{name, 0o644, text})
		return err
	})
	if err != nil {
		return err
	}
	text, err := archive(files)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "weir-image.tar"), text, 0o644)
}

func (r *release) image(platform string) (v1.Image, error) {
	binary := filepath.Join(filepath.Dir(r.clone), "weir-in-image")
	if err := r.build(platform, binary, "-tags=timetzdata"); err != nil {
		return nil, err
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	licences, err := os.ReadFile(filepath.Join(r.out, licencesFile))
	if err != nil {
		return nil, err
	}
	files, err := archive([]file{
		{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities()},
		{licencesFile, 0o644, licences},
		{"weir", 0o755, program},
	})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, _ = strings.Cut(platform, "/")
	config.Config = imageConfig()
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.source":  "https://" + r.path,
		"org.opencontainers.image.version": r.version,
	}
	return mutate.ConfigFile(image, config)
}

// imageConfig describes how the image runs. TestDockerfile compares it with the
// Dockerfile.
func imageConfig() v1.Config {
	return v1.Config{
		User:         "65532:65532",
		Env:          []string{"WEIR_LIMITS=/etc/weir/limits.yaml", "WEIR_ADDR=:8080", "WEIR_AUTH_ADDR=:9090", "WEIR_ADMIN_ADDR=:9091"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "9090/tcp": {}, "9091/tcp": {}},
		Entrypoint:   []string{"/weir"},
		Cmd:          []string{"serve"},
	}
}

// authorities returns the certificates that Mozilla trusts, as text.
func authorities() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
	}
	return b.Bytes()
}

type file struct {
	name string
	mode int64
	text []byte
}

// archive returns a tar archive of files that belong to root and have no times.
func archive(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
