package archtest

import (
	"path"
	"strings"
	"testing"
)

// The stages meet in data, never in code: none imports another.
var stages = []string{"ingest", "storage", "cdc", "triggers", "indexer"}

// joiners may import any package of the module: they put the parts together.
var joiners = []struct{ pkg, reason string }{
	{"cmd/cellog", "a command joins the parts it runs"},
	{"internal/app", "the composition root that dev, the single roles, the demo and the tests of whole processes share"},
	{"internal/demo", "plays the users of a running cellog: services that put, and a billing trigger"},
	{"tests", "tests of several real parts together: over HTTP, from binlog to broker, from HTTP to an index"},
	{"bench", "measures several real parts together"},
}

// exceptions are imports that the rules forbid, each with its reason.
// testOnly ones hold for _test.go files only.
var exceptions = []struct {
	from, to string
	testOnly bool
	reason   string
}{
	{"schemas/record", "schemas/body", false, "the value of a record may be a stored body, and its one reader gives everybody JSON"},
	{"storage/mysql", "storage/storagetest", true, "every cell store runs the suite that says what one must do"},
}

// homes says where a library may be imported: its types and errors stay there.
var homes = []struct {
	lib     string
	pkgs    []string
	metrics bool // also in files named metrics.go
	tests   bool // also in _test.go files
	reason  string
}{
	{lib: "github.com/go-sql-driver/mysql", pkgs: []string{"internal/mysqlconn"},
		reason: "others use database/sql and the marks of mysqlconn"},
	{lib: "github.com/go-mysql-org/go-mysql", pkgs: []string{"cdc/binlog"},
		reason: "its decode errors hold row bodies, and its versions change under us"},
	{lib: "github.com/twmb/franz-go", pkgs: []string{"internal/kafka", "internal/kafkatest", "internal/devbroker", "tests/harness"}, tests: true,
		reason: "position, fencing, produce and consume have one home; kafkatest and devbroker run its broker; the harness puts a proxy before it; a test may read as a stranger would"},
	{lib: "github.com/pierrec/lz4", pkgs: []string{"internal/kafka"},
		reason: "how batches are compressed is decided in one place"},
	{lib: "github.com/prometheus", pkgs: []string{"internal/obs"}, metrics: true, tests: true,
		reason: "metrics are a struct per part"},
	{lib: "github.com/spf13/cobra", pkgs: []string{"cmd/cellog"}, reason: "flags are the command line's"},
	{lib: "github.com/vbauerster/mpb", pkgs: []string{"cmd/cellog"}, reason: "progress bars are the terminal's"},
	{lib: "github.com/danielgtaylor/huma", pkgs: []string{"ingest/httpapi"}, reason: "HTTP is one adapter"},
	{lib: "github.com/ThreeDotsLabs/watermill", pkgs: []string{"triggers"}, tests: true, reason: "the router of the triggers"},
	{lib: "github.com/vmihailenco/msgpack", pkgs: []string{"schemas/body"}, tests: true, reason: "the stored form of a body"},
}

func TestImportArrows(t *testing.T) {
	m := load(t)
	used := make(map[int]bool)
	for _, f := range m.files {
		if isJoiner(f.pkg) {
			continue
		}
		for _, imp := range f.imports {
			to, ok := m.internal(imp)
			if !ok {
				if f.pkg == "" && !f.test && strings.Contains(imp, ".") && imp != "github.com/google/uuid" {
					t.Errorf("%s imports %s: the root package imports the standard library and uuid only", f.path, imp)
				}
				continue
			}
			why := forbidden(f.pkg, to)
			if why == "" {
				continue
			}
			if i := exception(f.pkg, to, f.test); i >= 0 {
				used[i] = true
				continue
			}
			t.Errorf("%s imports %s: %s", f.path, to, why)
		}
	}
	for i, e := range exceptions {
		if e.reason == "" {
			t.Errorf("exception %s -> %s has no reason", e.from, e.to)
		}
		if !used[i] {
			t.Errorf("exception %s -> %s is needed by no import any more: delete its row", e.from, e.to)
		}
	}
}

// forbidden returns why package from may not import package to, or "".
func forbidden(from, to string) string {
	switch {
	case from == to || to == "":
		return ""
	case from == "":
		return "the root package imports no other package of the module"
	case isJoiner(to):
		return "nothing imports what joins the parts"
	case strings.HasPrefix(to, from+"/"):
		return "a parent never imports a sub-folder"
	case strings.HasPrefix(from, to+"/"):
		return "" // a sub-folder may import its parent
	}
	fromStage, toStage := stage(from), stage(to)
	switch {
	case toStage != "" && fromStage == toStage:
		return "siblings never import each other"
	case toStage != "" && fromStage != "":
		return "stages meet in data, not in code"
	case toStage != "":
		return "only what joins the parts imports a stage"
	case strings.HasPrefix(to, "deploy/") && fromStage != "":
		return "a stage does not know where it runs"
	case strings.HasPrefix(from, "schemas/") && strings.HasPrefix(to, "schemas/"):
		return "a shape does not depend on another shape"
	case strings.HasPrefix(from, "schemas/") && strings.HasPrefix(to, "internal/"):
		return "a shape does not depend on how it is used"
	}
	return ""
}

func stage(pkg string) string {
	first, _, _ := strings.Cut(pkg, "/")
	for _, s := range stages {
		if s == first {
			return s
		}
	}
	return ""
}

func isJoiner(pkg string) bool {
	for _, j := range joiners {
		if j.pkg == pkg || strings.HasPrefix(pkg, j.pkg+"/") {
			return true
		}
	}
	return false
}

func exception(from, to string, test bool) int {
	for i, e := range exceptions {
		if e.from == from && e.to == to && (test || !e.testOnly) {
			return i
		}
	}
	return -1
}

func TestLibrariesStayHome(t *testing.T) {
	m := load(t)
	for _, h := range homes {
		for _, f := range m.files {
			if !imports(f, h.lib) || f.test && h.tests || h.metrics && path.Base(f.path) == "metrics.go" {
				continue
			}
			home := false
			for _, p := range h.pkgs {
				home = home || f.pkg == p || strings.HasPrefix(f.pkg, p+"/")
			}
			if !home {
				t.Errorf("%s imports %s, whose home is %s: %s", f.path, h.lib, strings.Join(h.pkgs, ", "), h.reason)
			}
		}
	}
}

// A row about a package that is gone guards a ghost.
func TestNoRowGuardsAGhost(t *testing.T) {
	m := load(t)
	want := func(table, pkg string) {
		if !m.packages[pkg] {
			t.Errorf("%s names %s, which does not exist: delete the row", table, pkg)
		}
	}
	for _, s := range stages {
		want("stages", s)
	}
	for _, j := range joiners {
		if !m.hasPackagesIn(j.pkg) {
			t.Errorf("joiners names %s, where there is no package: delete the row", j.pkg)
		}
	}
	for _, e := range exceptions {
		want("exceptions", e.from)
		want("exceptions", e.to)
	}
	for _, h := range homes {
		used := false
		for _, p := range h.pkgs {
			want("homes", p)
		}
		for _, f := range m.files {
			used = used || imports(f, h.lib)
		}
		if !used {
			t.Errorf("homes names %s, which nobody imports: delete the row", h.lib)
		}
	}
}

func (m *module) hasPackagesIn(dir string) bool {
	for p := range m.packages {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

func imports(f file, lib string) bool {
	for _, imp := range f.imports {
		if imp == lib || strings.HasPrefix(imp, lib+"/") {
			return true
		}
	}
	return false
}
