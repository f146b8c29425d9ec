package record

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
)

func stored(t testing.TB, text string) []byte {
	t.Helper()
	b, err := body.Encode(nil, []byte(text), body.Limits{Bytes: body.MaxBytes})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// inForm returns a cell with its body's value in a form.
func inForm(t testing.TB, c cellog.Cell, form Form) cellog.Cell {
	t.Helper()
	value, got, err := AppendValue(nil, stored(t, string(c.Body)), form)
	if err != nil || got != form {
		t.Fatalf("%s became %s: %v", form, got, err)
	}
	c.Body = value
	return c
}

var bodies = map[string]string{
	"plain":  `{"total":12.95,"é":[null,-0,1e400]}`,
	"zipped": `["` + strings.Repeat("all the same, ", 100) + `"]`,
}

// Each form comes back as the same JSON, and appends.
func TestForms(t *testing.T) {
	for name, text := range bodies {
		for _, form := range []Form{"", JSON, MessagePack, Stored} {
			c := sample()
			value, as, err := AppendValue([]byte("kept"), stored(t, text), form)
			if err != nil || !strings.HasPrefix(string(value), "kept") {
				t.Fatal(err)
			}
			c.Body = value[len("kept"):]
			r := NewEncoder(c.Datastore).Encode(&c, as, nil)
			got, err := Decode(r)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, form, err)
			}
			c.Body = []byte(text)
			if diff := cmp.Diff(c, got); diff != "" {
				t.Errorf("%s, %s:\n%s", name, form, diff)
			}
		}
	}
}

// A value that is not what its content-type says is no cell, wherever it is
// cut; the error names the form, and never holds the body.
func TestBrokenValues(t *testing.T) {
	for name, text := range bodies {
		for _, form := range []Form{MessagePack, Stored} {
			c := sample()
			c.Body = []byte(text)
			c = inForm(t, c, form)
			for n := 1; n < len(c.Body); n++ {
				r := NewEncoder(c.Datastore).Encode(&c, form, nil)
				r.Value = r.Value[:n]
				_, err := Decode(r)
				if !errors.Is(err, ErrNotACell) || body.CodeOf(err) != body.CodeCorrupt || !strings.Contains(err.Error(), string(contentTypes[form])) {
					t.Fatalf("%s, %s, %d bytes: %v", name, form, n, err)
				}
			}
		}
	}
	if _, err := ValueJSON("text/plain", []byte("x")); err == nil || !strings.Contains(err.Error(), "application/vnd.cellog.body") {
		t.Error(err)
	}
}

// Each form checks the stored checksum before anything is published.
func TestDamagedBodies(t *testing.T) {
	for _, text := range bodies {
		damaged := stored(t, text)
		damaged[len(damaged)-1] ^= 1
		for _, form := range []Form{JSON, MessagePack, Stored} {
			out, _, err := AppendValue([]byte("kept"), damaged, form)
			if body.CodeOf(err) != body.CodeCorrupt || string(out) != "kept" {
				t.Errorf("%s: %v, and %.20q", form, err, out)
			}
		}
	}
}

// What is longer than the largest JSON goes as JSON, since a topic takes that.
func TestLongValues(t *testing.T) {
	const each = len("1.5,") // six bytes of MessagePack
	longest := "[" + strings.Repeat("1.5,", (body.MaxBytes-4)/each) + "1]"
	fits := `"` + strings.Repeat("a", body.MaxBytes-5) + `"` // MaxBytes of MessagePack
	above := `"` + strings.Repeat("a", body.MaxBytes-2) + `"`
	// Of so many letters by dice zlib saves no fifth: stored, n+10 bytes.
	rnd, noise := rand.New(rand.NewPCG(1, 1)), make([]byte, body.MaxBytes-9)
	for i := range noise {
		for noise[i] = '"'; noise[i] == '"' || noise[i] == '\\'; {
			noise[i] = byte(' ' + rnd.IntN(95))
		}
	}
	for _, tt := range []struct {
		name, text string
		form, want Form
	}{
		{"numbers", longest, MessagePack, JSON},
		{"fits", fits, MessagePack, MessagePack},
		{"above", above, MessagePack, JSON},
		{"zipped", above, Stored, Stored},
		{"noise fits", `"` + string(noise[1:]) + `"`, Stored, Stored},
		{"noise above", `"` + string(noise) + `"`, Stored, JSON},
	} {
		value, got, err := AppendValue(nil, stored(t, tt.text), tt.form)
		if err != nil || got != tt.want || len(value) > body.MaxBytes {
			t.Errorf("%s: %s of %d bytes, %v", tt.name, got, len(value), err)
			continue
		}
		if text, err := ValueJSON(string(contentTypes[got]), value); err != nil || string(text) != tt.text {
			t.Errorf("%s: %d bytes came back, %v", tt.name, len(text), err)
		}
	}
}

func TestFormsOf(t *testing.T) {
	var none Forms
	some := Forms{"BASE": MessagePack, OtherColumns: Stored}
	if none.Of("BASE") != "" || some.Of("BASE") != MessagePack || some.Of("NOTES") != Stored || (Forms{"BASE": JSON}).Of("NOTES") != "" {
		t.Error("a column has another form than was asked for")
	}
}
