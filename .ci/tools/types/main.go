// Types checks that the root module and the service compile for other systems, with their tests:
//
//	go run -C .ci/tools ./types windows/amd64 darwin/arm64
//
// It checks the types of all packages from their sources and generates no code. go vet compiles all
// dependencies for each system before it finds the same errors, which takes twenty times as long.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("types: ")
	ok := true
	for _, platform := range os.Args[1:] {
		system, processor, _ := strings.Cut(platform, "/")
		for _, module := range []string{"../..", "../../cmd/weir"} {
			for _, err := range check(module, system, processor) {
				log.Printf("%s: %v", platform, err)
				ok = false
			}
		}
	}
	if !ok {
		os.Exit(1)
	}
}

// check returns the errors of a module on a system.
func check(module, system, processor string) (found []error) {
	dir, err := filepath.Abs(module)
	if err != nil {
		return []error{err}
	}
	all, err := packages.Load(&packages.Config{
		Mode:  packages.LoadAllSyntax,
		Tests: true,
		Dir:   dir,
		Env:   append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0"),
		ParseFile: func(files *token.FileSet, name string, text []byte) (*ast.File, error) {
			file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
			if file != nil && !strings.HasPrefix(name, dir+string(filepath.Separator)) {
				for _, d := range file.Decls { // of a dependency, only the declarations matter
					if f, ok := d.(*ast.FuncDecl); ok {
						f.Body = nil
					}
				}
			}
			return file, err
		},
	}, "./...")
	if err == nil && len(all) == 0 {
		err = errors.New("no packages")
	}
	if err != nil {
		return []error{fmt.Errorf("%s: %w", module, err)}
	}
	for _, p := range all {
		if strings.HasSuffix(p.PkgPath, ".test") {
			continue // the main function that go test generates, which lies elsewhere
		}
		for _, e := range p.Errors {
			found = append(found, e)
		}
	}
	return found
}
