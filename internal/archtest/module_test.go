package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// file is what the checks need of one Go file. pkg and path are relative to
// the module's root; the root package's pkg is "".
type file struct {
	path, pkg string
	test      bool
	lines     int
	imports   []string
	syntax    *ast.File
}

type module struct {
	root, name string
	fset       *token.FileSet
	files      []file
	packages   map[string]bool
}

// internal returns the package's path within the module.
func (m *module) internal(imp string) (string, bool) {
	if imp == m.name {
		return "", true
	}
	return strings.CutPrefix(imp, m.name+"/")
}

var loadOnce = sync.OnceValues(parseModule)

func load(t *testing.T) *module {
	t.Helper()
	m, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func parseModule() (*module, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	m := &module{fset: token.NewFileSet(), packages: map[string]bool{}}
	for {
		mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
		if err == nil {
			line, _, _ := strings.Cut(string(mod), "\n")
			m.root, m.name = root, strings.TrimPrefix(line, "module ")
			break
		}
		if filepath.Dir(root) == root {
			return nil, err
		}
		root = filepath.Dir(root)
	}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata") {
				return filepath.SkipDir
			}
			// A nested module has bones of its own.
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && rel != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(m.fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		// Files under the tag "pins" only hold versions in go.mod; they are
		// never built.
		if strings.HasPrefix(string(src), "//go:build pins\n") {
			return nil
		}
		pkg := filepath.ToSlash(filepath.Dir(rel))
		if pkg == "." {
			pkg = ""
		}
		f := file{path: filepath.ToSlash(rel), pkg: pkg, test: strings.HasSuffix(name, "_test.go"),
			lines: strings.Count(string(src), "\n"), syntax: syntax}
		for _, i := range syntax.Imports {
			s, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, s)
		}
		m.files = append(m.files, f)
		m.packages[pkg] = true
		return nil
	})
	return m, err
}
