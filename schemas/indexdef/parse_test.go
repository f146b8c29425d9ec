package indexdef

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestGood(t *testing.T) {
	got, err := LoadDir(filepath.Join("testdata", "good"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Definition{
		{Table: "driver_partner_index", Datastore: "trips", Line: 2, Columns: []Column{
			{Key: "BASE", Fields: []Field{{"driver_partner_uuid", UUID}, {"city_uuid", UUID}, {"trip_created_at", DateTime}}},
		}},
		{Table: "payments", Datastore: "trips", Line: 2, Columns: []Column{
			{Key: "STATUS", Fields: []Field{{"outcome", String}, {"attempt", Int64}}},
			{Key: "FARE_ADJUSTMENT", Fields: []Field{{"amount", Decimal}, {"rate", Float64}, {"refunded", Bool}}},
		}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Definition{}, "File")); diff != "" {
		t.Error(diff)
	}
	if f := got[1].ShardField(); f != (Field{"outcome", String}) {
		t.Errorf("the shard field is %v", f)
	}
	if n := len(got[1].Fields()); n != 5 {
		t.Errorf("%d fields", n)
	}
}

// Each file of testdata/bad has one mistake (or two that come together), and
// begins with the errors that it must give: "# line:column: message", where
// lines are counted from the first one that is no such comment.
func TestBad(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "bad", "*.bad.yaml"))
	if err != nil || len(files) < 30 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".bad.yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			rest := string(text)
			for strings.HasPrefix(rest, "# ") {
				line, after, _ := strings.Cut(rest, "\n")
				want, rest = append(want, strings.TrimPrefix(line, "# ")), after
			}
			_, err = Parse("f", []byte(rest))
			var got []string
			for _, e := range All(err) {
				got = append(got, strings.TrimSpace(strings.TrimPrefix(e.Error(), "f:")))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	define := func(columns, fields int) string {
		var b strings.Builder
		b.WriteString("table: t\ndatastore: trips\ncolumn_defs:\n")
		for c := range columns {
			fmt.Fprintf(&b, "- column_key: C%d\n  fields:\n", c)
			for f := range fields {
				fmt.Fprintf(&b, "  - {field: f%d_%d, type: int64}\n", c, f)
			}
		}
		return b.String()
	}
	for _, tt := range []struct {
		columns, fields int
		want            string
	}{
		{1, 32, ""}, {1, 33, "fields has 33 items: want at most 32"}, {16, 2, ""}, {17, 1, "column_defs has 17 items: want at most 16"},
		{2, 17, "field f1_15 is one too many: an index has at most 32"},
	} {
		_, err := Parse("f", []byte(define(tt.columns, tt.fields)))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%d columns of %d fields: %v, want %q", tt.columns, tt.fields, err, tt.want)
		}
	}
	one := define(1, 1)
	if _, err := Parse("f", []byte(one+"#"+strings.Repeat("x", MaxFileBytes-len(one)-2)+"\n")); err != nil {
		t.Error(err)
	}
	if _, err := Parse("f", []byte(one+"#"+strings.Repeat("x", MaxFileBytes-len(one)-1)+"\n")); err == nil {
		t.Error("a file of more than the limit passed")
	}
	if _, err := Parse("f", []byte("\xef\xbb\xbf"+one)); err != nil {
		t.Errorf("a byte order mark: %v", err)
	}
	began := time.Now()
	if _, err := Parse("f", []byte(strings.Repeat("[", MaxFileBytes))); err == nil || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	longest := strings.Replace(one, "table: t", "table: t"+strings.Repeat("_", 54), 1)
	if _, err := Parse("f", []byte(longest)); err != nil {
		t.Error(err)
	}
	longest = strings.Replace(one, "f0_0", "f"+strings.Repeat("0", 61), 1)
	if _, err := Parse("f", []byte(longest)); err != nil {
		t.Error(err)
	}
}

func TestLoadDir(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const good = "table: a\ndatastore: trips\ncolumn_defs: [{column_key: BASE, fields: [{field: x, type: uuid}]}]\n"
	if got, err := LoadDir(dir); err != nil || len(got) != 0 {
		t.Errorf("an empty folder: %v, %v", got, err)
	}
	write("b.yaml", good)
	write("c.yml", strings.Replace(good, "trips", "riders", 1))
	write("README.md", "no definition")
	write(".hidden.yaml", "no definition")
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := LoadDir(dir); err != nil || len(got) != 2 || got[0].Datastore != "trips" || got[1].Datastore != "riders" {
		t.Errorf("%v, %v", got, err)
	}
	write("d.yaml", "# again\n"+good)
	write("e.yaml", "table: [\n")
	write("f.yaml", strings.Replace(good, "uuid", "guid", 1))
	_, err := LoadDir(dir)
	all := All(err)
	if len(all) != 3 {
		t.Fatalf("want three errors: %v", err)
	}
	if want := fmt.Sprintf("%s:2:1: datastore trips has its table a already in %s:1", filepath.Join(dir, "d.yaml"), filepath.Join(dir, "b.yaml")); all[0].Error() != want {
		t.Errorf("%v, want %s", all[0], want)
	}
	if all[1].File != filepath.Join(dir, "e.yaml") || all[1].Line == 0 {
		t.Errorf("%v", all[1])
	}
	if !strings.HasPrefix(all[2].Error(), filepath.Join(dir, "f.yaml")+":3:") {
		t.Errorf("%v", all[2])
	}
	if _, err := LoadDir(filepath.Join(dir, "none")); !os.IsNotExist(unwrap(err)) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func unwrap(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		if _, isPath := err.(*os.PathError); isPath {
			return err
		}
		err = u.Unwrap()
	}
}

// Whatever the file, the parser returns.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*", "testdata/bad/*"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse("f", text)
		if err == nil {
			_ = d.ShardField()
			return
		}
		if len(All(err)) == 0 {
			t.Fatalf("an error without a place: %v", err)
		}
	})
}
