package importer

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// What people export and cut off, and what each is told: the line, the field,
// the way out, and nothing of how the program is made.
func TestHostileFiles(t *testing.T) {
	const a, b = rowA, "0c2f6a4e-6a3c-4d7f-9f1e-0d6b1f3a5c78"
	stored := func(line, row, body string) string { return line + " " + row + "/BASE/0 " + body }
	long := strings.Repeat("x", maxRow)
	for _, c := range []struct {
		name, file string
		jsonl      bool
		want       []string // of the source as a whole: "refused …"
	}{
		{"empty", "", false, []string{"refused the file is empty: its first row must name the fields"}},
		{"a mark only", "\xef\xbb\xbf", false, []string{"refused the file is empty: its first row must name the fields"}},
		{"blank lines only", "\n\r\n\n", false, []string{"refused the file is empty: its first row must name the fields"}},
		{"header only", "id,a\n", false, nil},
		{"mark before a quote", "\xef\xbb\xbf\"id\",a\r\n" + a + ",1\r\n", false, []string{stored("2", a, `{"id":"`+a+`","a":"1"}`)}},
		{"UTF-16", "\xff\xfei\x00d\x00", false, []string{"refused the file is UTF-16: want UTF-8, which iconv -f UTF-16 -t UTF-8 makes of it"}},
		{"Latin-1 in the header", "id,\xe9\n", false, []string{`refused the header: the name of field 2, "\xe9", is not UTF-8`}},
		{"Latin-1 in a row", "id,a\n" + a + ",\xe9\n" + b + ",e\n", false, []string{`bad line 2: field "a": not UTF-8`, stored("3", b, `{"id":"`+b+`","a":"e"}`)}},
		{"a comma too many in the header", "id,\n", false, []string{"refused the header: field 2 has no name: name it, or leave it out by the type skip"}},
		{"the name of the line number", "id,_line\n", false, []string{"refused the header: field _line: this name is taken, it stands for each row's line number"}},
		{"semicolons", "id;a\n", false, []string{`refused row key: there is no field "id"; there are "id;a": is another character than the comma between the fields?`}},
		{"gzip by another name", "\x1f\x8b\x08", false, []string{"refused the file is compressed by gzip: give it a name that ends in .gz, or unpack it"}},
		{"too few and too many", "id,a\n" + a + "\n" + a + ",1,2\n", false, []string{"bad line 2: 1 fields, but the header names 2", "bad line 3: 3 fields, but the header names 2"}},
		{"a quote that is not closed", "id,a\n" + a + ",\"x\n" + b + ",1\n" + b + ",2\n", false,
			[]string{`bad line 2: a quote (") is not closed, or is followed by neither comma nor line end: write "" for a quote in a quoted field; all up to line 4 was taken for this row, and is not imported`}},
		{"a quote in the middle", "id,a\n" + a + ",x\"y\n" + b + ",1\n", false,
			[]string{`bad line 2: a quote (") stands inside a field that is not quoted: quote the field, and write "" for a quote in it`, stored("3", b, `{"id":"`+b+`","a":"1"}`)}},
		{"a row that fills the memory", "id,a\n" + a + ",\"" + long + long[:1<<16], false, []string{"failed behind line 1: a row is longer than 67108864 bytes: is a quote not closed?"}},

		{"blank lines", "\n  \t\r\n" + `{"id":"` + a + `"}` + "\r\n\n", true, []string{stored("3", a, `{"id":"`+a+`"}`)}},
		{"a mark", "\xef\xbb\xbf" + `{"id":"` + a + `"}`, true, []string{stored("1", a, `{"id":"`+a+`"}`)}},
		{"other values", "null\n\"x\"\n1\n-\ntrue\nid\n{\n", true, []string{"bad line 1: it is null: want a JSON object", "bad line 2: it is a string: want a JSON object",
			"bad line 3: it is a number: want a JSON object", "bad line 4: it is a number: want a JSON object", "bad line 5: it is a bool: want a JSON object",
			"bad line 6: it is not JSON: want a JSON object", "bad line 7: not a JSON object: unexpected end of JSON input"}},
		{"other values as the key", `{"id":null}` + "\n" + `{"id":[1]}` + "\n" + `{"id":{}}` + "\n" + `{"ID":"` + a + `"}`, true, []string{
			`bad line 1: field "id": it is null: want a string or a number`, `bad line 2: field "id": it is an array: want a string or a number`,
			`bad line 3: field "id": it is an object: want a string or a number`, `bad line 4: field "id": it is not there`}},
		{"a line that fills the memory", `{"id":"` + long + "\"}\n" + `{"id":"` + b + `"}`, true, []string{"bad line 1: the line is longer than 67108864 bytes", stored("2", b, `{"id":"`+b+`"}`)}},
		{"the longest line", `{"id":"` + a + `"` + strings.Repeat(" ", maxRow-46) + "}\n" + `{"id":"` + b + `"}`, true, []string{
			"1 " + a + "/BASE/0 67108863 bytes", stored("2", b, `{"id":"`+b+`"}`)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			open := NewCSV
			if c.jsonl {
				open = NewJSONL
			}
			src, err := open(strings.NewReader(c.file), Mapping{Column: "BASE", RowKey: "id"})
			var got []string
			if err != nil {
				got = []string{"refused " + err.Error()}
			}
			for err == nil {
				var line string
				if line, err = next(src); line != "" {
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A nameless field, such as the index that pandas writes, can be left out.
func TestNamelessFieldLeftOut(t *testing.T) {
	s, err := NewCSV(strings.NewReader(",id\n0,"+rowA+"\n"), Mapping{Column: "BASE", RowKey: "id", Types: map[string]string{"": "skip"}})
	if got := all(t, s, err); len(got) != 1 || got[0] != "2 "+rowA+`/BASE/0 {"id":"`+rowA+`"}` {
		t.Errorf("%q", got)
	}
}

// A file that ends early because it cannot be read is no shorter file.
func TestBrokenFiles(t *testing.T) {
	broken := errors.New("the disk is broken")
	for _, c := range []struct {
		open func(io.Reader, Mapping) (Source, error)
		head string
	}{{NewCSV, "id,a\n" + rowA + ",1\n" + rowA}, {NewJSONL, `{"id":"` + rowA + `"}` + "\n{"}} {
		src, err := c.open(io.MultiReader(strings.NewReader(c.head), iotest.ErrReader(broken)), Mapping{Column: "BASE", RowKey: "id"})
		for err == nil {
			_, _, err = src.Next()
		}
		if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "behind line ") {
			t.Error(err)
		}
	}
	if _, err := NewCSV(iotest.ErrReader(broken), Mapping{Column: "BASE", RowKey: "id"}); !errors.Is(err, broken) {
		t.Error(err)
	}
}
