package archtest

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxLines is where a file is asked which second noun moved in.
const maxLines = 500

func TestFilesAreShort(t *testing.T) {
	for _, f := range load(t).files {
		if f.lines > maxLines {
			t.Errorf("%s has %d lines: at most %d; which second noun moved in?", f.path, f.lines, maxLines)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	m := load(t)
	documented := map[string]string{}
	for _, f := range m.files {
		if f.test || f.syntax.Doc == nil {
			continue
		}
		if other := documented[f.pkg]; other != "" {
			t.Errorf("package %q is documented in %s and in %s: one place", f.pkg, other, f.path)
		}
		documented[f.pkg] = f.path
		name := f.syntax.Name.Name
		want := "Package " + name + " "
		if name == "main" {
			want = "Command "
		}
		text := f.syntax.Doc.Text()
		if !strings.HasPrefix(text, want) {
			t.Errorf("%s: the package comment must begin with %q", f.path, want)
		}
		if len(strings.Fields(text)) < 12 {
			t.Errorf("%s: the package comment must say the package's job and promises", f.path)
		}
	}
	for _, f := range m.files {
		if !f.test && documented[f.pkg] == "" {
			t.Errorf("package %q has no package comment: write doc.go", f.pkg)
			documented[f.pkg] = "reported"
		}
	}
}

func TestExportedIdentifiersAreDocumented(t *testing.T) {
	m := load(t)
	for _, f := range m.files {
		if f.test || f.syntax.Name.Name == "main" {
			continue
		}
		report := func(pos token.Pos, name string) {
			t.Errorf("%s:%d: exported %s has no doc comment", f.path, m.fset.Position(pos).Line, name)
		}
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil {
					report(d.Pos(), d.Name.Name)
				}
			case *ast.GenDecl:
				checkSpecs(d, report)
			}
		}
	}
}

// checkSpecs accepts the comment of a group for each of its constants or
// variables, but wants one at every type.
func checkSpecs(d *ast.GenDecl, report func(token.Pos, string)) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
				report(s.Pos(), s.Name.Name)
			}
		case *ast.ValueSpec:
			if d.Doc != nil || s.Doc != nil || s.Comment != nil {
				continue
			}
			for _, n := range s.Names {
				if n.IsExported() {
					report(n.Pos(), n.Name)
				}
			}
		}
	}
}

// exportedReceiver says whether a method can be reached by its type's name.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

func TestArchitecturePageIsShort(t *testing.T) {
	text := readDoc(t, "architecture.md")
	if len(text) > 8<<10 {
		t.Errorf("docs/architecture.md has %d bytes: at most 8 KB", len(text))
	}
}

// Every test that the guarantees and their counter-proofs name must exist, and
// every guarantee must have a row.
func TestGuaranteesNameRealTests(t *testing.T) {
	m := load(t)
	tests := map[string]bool{}
	for _, f := range m.files {
		if !f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[f.pkg+"."+fn.Name.Name] = true
			}
		}
	}
	text := readDoc(t, "guarantees.md")
	for _, g := range []string{"G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9", "G10"} {
		if !strings.Contains(text, "**"+g+" ") {
			t.Errorf("docs/guarantees.md does not speak of %s", g)
		}
	}
	named := regexp.MustCompile("`([a-z0-9/_]*)\\.((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]*)`")
	for doc, text := range map[string]string{"guarantees.md": text, "proofs.md": readDoc(t, "proofs.md")} {
		for _, ref := range named.FindAllStringSubmatch(text, -1) {
			if !tests[ref[1]+"."+ref[2]] {
				t.Errorf("docs/%s names %s.%s, which does not exist", doc, ref[1], ref[2])
			}
		}
	}
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(load(t).root, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
