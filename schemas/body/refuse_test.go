package body

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestEncodeRefuses(t *testing.T) {
	for _, tt := range []struct {
		in      string
		code    string
		offset  int64
		pointer string
	}{
		{"", CodeEmpty, -1, ""},
		{" \n\t\r", CodeEmpty, -1, ""},
		{"nul", CodeInvalidJSON, 3, ""},
		{"NaN", CodeInvalidJSON, 0, ""},
		{"Infinity", CodeInvalidJSON, 0, ""},
		{"-Infinity", CodeInvalidJSON, 1, ""},
		{"'a'", CodeInvalidJSON, 0, ""},
		{"undefined", CodeInvalidJSON, 0, ""},
		{"01", CodeInvalidJSON, 1, ""},
		{"+1", CodeInvalidJSON, 0, ""},
		{"1.", CodeInvalidJSON, 0, ""},
		{".5", CodeInvalidJSON, 0, ""},
		{"1e", CodeInvalidJSON, 0, ""},
		{"-", CodeInvalidJSON, 0, ""},
		{"0x10", CodeInvalidJSON, 1, ""},
		{"1_000", CodeInvalidJSON, 1, ""},
		{"[", CodeInvalidJSON, 1, ""},
		{"[1", CodeInvalidJSON, 2, ""},
		{"[1,", CodeInvalidJSON, 3, ""},
		{"[1,]", CodeInvalidJSON, 2, ""},
		{"[,1]", CodeInvalidJSON, 1, ""},
		{"]", CodeInvalidJSON, 0, ""},
		{"[}", CodeInvalidJSON, 1, "/0"},
		{`{"a":1,}`, CodeInvalidJSON, 6, ""},
		{`{"a" 1}`, CodeInvalidJSON, 5, "/a"},
		{`{"a":}`, CodeInvalidJSON, 5, "/a"},
		{`{a:1}`, CodeInvalidJSON, 1, ""},
		{`{1:1}`, CodeInvalidJSON, 1, ""},
		{`{"a":1`, CodeInvalidJSON, 6, ""},
		{`"a`, CodeInvalidJSON, 2, ""},
		{"\"a\nb\"", CodeInvalidJSON, 2, ""},
		{"\"a\x00b\"", CodeInvalidJSON, 2, ""},
		{`"\x41"`, CodeInvalidJSON, 1, ""},
		{`"\u12"`, CodeInvalidJSON, 1, ""},
		{`"\ud800"`, CodeInvalidJSON, 1, ""},
		{`"\udc00"`, CodeInvalidJSON, 1, ""},
		{`"\ud800\u0041"`, CodeInvalidJSON, 1, ""},
		{`{"a":["\ud800x"]}`, CodeInvalidJSON, 7, "/a/0"},
		{"\"\xff\"", CodeInvalidUTF8, 1, ""},
		{"\"\xc0\x80\"", CodeInvalidUTF8, 1, ""},
		{"\"\xed\xa0\x80\"", CodeInvalidUTF8, 1, ""},
		{"\xff\xfe1\x00", CodeInvalidUTF8, 0, ""},
		{"\xef\xbb\xbf1", CodeInvalidJSON, 0, ""},
		{"1 2", CodeInvalidJSON, 1, ""},
		{"{}{}", CodeInvalidJSON, 2, ""},
		{"{}\n{}", CodeInvalidJSON, 2, ""},
		{"[],", CodeInvalidJSON, 2, ""},
		{"[]]", CodeInvalidJSON, 2, ""},
		{"1//c", CodeInvalidJSON, 1, ""},
		{"/*c*/1", CodeInvalidJSON, 0, ""},
		{"1\x00", CodeInvalidJSON, 1, ""},
		{`{"a":1,"a":2}`, CodeDuplicateKey, 7, "/a"},
		{`{"a":1,"\u0061":1}`, CodeDuplicateKey, 7, "/a"},
		{`{"":1,"":2}`, CodeDuplicateKey, 6, "/"},
		{`[{"x":{"a~/b":1,"c":2,"a~/b":1}}]`, CodeDuplicateKey, 22, "/0/x/a~0~1b"},
	} {
		got, err := Encode([]byte("kept"), []byte(tt.in), Limits{})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("Encode(%q): %v", tt.in, err)
			continue
		}
		if e.Code != tt.code || e.Offset != tt.offset || e.Pointer != tt.pointer || string(got) != "kept" {
			t.Errorf("Encode(%q) = %s at %d, %q (%v), want %s at %d, %q", tt.in, e.Code, e.Offset, e.Pointer, e, tt.code, tt.offset, tt.pointer)
		}
	}
}

// Errors go to logs; bodies must not.
func TestErrorsHoldNoBody(t *testing.T) {
	const secret = "5555444433332222"
	for _, in := range []string{
		`{"` + secret + `":1,"` + secret + `":2}`, `{"a":"` + secret, `{"a":"` + secret + "\x01", `{"` + secret + `":x}`,
		`"\u5555` + secret + `\ud834"`, `"\ud834` + secret + `"`, secret + "x", `"` + secret + "\xff", secret + " " + secret,
		strings.Repeat(`{"`+secret+`":`, 1001) + "1" + strings.Repeat("}", 1001),
	} {
		_, err := Encode(nil, []byte(in), Limits{})
		if err == nil || strings.Contains(err.Error(), secret) || len(err.Error()) > 150 {
			t.Errorf("Encode(%.60q): %v", in, err)
		}
	}
}

func TestLongPointerIsCut(t *testing.T) {
	key := strings.Repeat("é", 5000)
	_, err := Encode(nil, []byte(`{"a`+key+`":x}`), Limits{})
	var e *Error
	if !errors.As(err, &e) || len(e.Pointer) != 200 || !strings.HasSuffix(e.Pointer, "é") {
		t.Errorf("%v", err)
	}
}

func nested(depth int, open, inner, end string) []byte {
	return []byte(strings.Repeat(open, depth) + inner + strings.Repeat(end, depth))
}

func TestDepthLimit(t *testing.T) {
	for _, tt := range []struct {
		limit, depth int
		ok           bool
	}{{0, 1000, true}, {0, 1001, false}, {1, 1, true}, {1, 2, false}, {MaxDepth, MaxDepth, true}, {MaxDepth + 5, MaxDepth, true}, {MaxDepth + 5, MaxDepth + 1, false}} {
		for _, in := range [][]byte{nested(tt.depth, "[", "", "]"), nested(tt.depth-1, `{"a":`, "{}", "}"), nested(tt.depth, `[`, "1", "]")} {
			stored, err := Encode(nil, in, Limits{Depth: tt.limit})
			if tt.ok != (err == nil) || !tt.ok && CodeOf(err) != CodeTooDeep {
				t.Errorf("depth %d, limit %d: %v", tt.depth, tt.limit, err)
			}
			if !tt.ok {
				continue
			}
			if out, err := AppendJSON(nil, stored, 0); err != nil || !bytes.Equal(out, in) {
				t.Errorf("depth %d came back with %d bytes of %d, %v", tt.depth, len(out), len(in), err)
			}
			if ok, err := Equal(stored, stored); err != nil || !ok {
				t.Error(ok, err)
			}
			if _, err := Hash(stored); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := Encode(nil, nested(10_000_000, "[", "", ""), Limits{}); CodeOf(err) != CodeTooLarge {
		t.Error(err)
	}
	if _, err := Encode(nil, nested(8<<20, "[", "", ""), Limits{}); CodeOf(err) != CodeTooDeep {
		t.Error(err)
	}
}

// Bodies of exactly the limit, of kinds that stretch: the stored form must fit
// a MEDIUMBLOB, the text must come back, and be no longer.
func TestByteLimit(t *testing.T) {
	fill := func(n int, open, item, end string) []byte {
		var b bytes.Buffer
		b.WriteString(open)
		for b.Len()+len(item)+len(end)+1 <= n {
			if b.Len() > len(open) {
				b.WriteByte(',')
			}
			b.WriteString(item)
		}
		b.WriteString(strings.Repeat(" ", n-b.Len()-len(end)))
		b.WriteString(end)
		return b.Bytes()
	}
	worst := func(n int) []byte { return fill(n, `[`, `1e5`, `]`) } // one and a half times as long when stored
	for n, kinds := range map[int]map[string][]byte{
		DefaultBytes: {
			"string":      []byte(`"` + strings.Repeat("x", DefaultBytes-2) + `"`),
			"escapes":     fill(DefaultBytes, `[`, `"`+strings.Repeat(`\u0001`, 100)+`"`, `]`),
			"worst":       worst(DefaultBytes),
			"long number": []byte(strings.Repeat("9", DefaultBytes)),
			"exponent":    []byte("1e" + strings.Repeat("9", DefaultBytes-2)),
			"objects":     fill(DefaultBytes, `[`, `{"":[]}`, `]`),
			"spaces":      []byte(strings.Repeat(" ", DefaultBytes-1) + "1"),
		},
		MaxBytes: {"worst": worst(MaxBytes)},
	} {
		for name, in := range kinds {
			if len(in) != n {
				t.Fatalf("%s: %d bytes", name, len(in))
			}
			e := encoders.Get().(*encoder)
			if err := e.encode(in, Limits{Bytes: n}.withDefaults()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			payload := e.payload
			if len(payload)+headerLen >= 1<<24 || len(payload) > payloadCap(n) {
				t.Errorf("%s: %d bytes of JSON are %d as MessagePack", name, n, len(payload))
			}
			out, err := AppendJSON(nil, sealed(formatPlain, payload), n)
			if err != nil || len(out) > n {
				t.Errorf("%s: %d bytes came back, %v", name, len(out), err)
			}
		}
		over := bytes.Repeat([]byte(" "), n+1)
		if _, err := Encode(nil, over, Limits{Bytes: n}); CodeOf(err) != CodeTooLarge {
			t.Errorf("%d bytes: %v", n+1, err)
		}
	}
	if _, err := Encode(nil, bytes.Repeat([]byte("1"), DefaultBytes+1), Limits{}); CodeOf(err) != CodeTooLarge {
		t.Error(err)
	}
}
