package body

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// FuzzRead: bytes behind a right checksum are refused, or are JSON that can be
// put again; either way for memory like their length.
func FuzzRead(f *testing.F) {
	for _, p := range hostilePayloads {
		if len(p) < 1000 {
			f.Add(p, false)
			f.Add(deflate(f, p), true)
		}
	}
	for _, in := range []string{trip, `[1,-1,1.5,1e400,"é",{"a":[]},-0]`} {
		stored := mustEncode(f, []byte(in))
		f.Add(stored[headerLen:], stored[0] == formatZlib)
	}
	f.Fuzz(func(t *testing.T, payload []byte, zipped bool) {
		format := byte(formatPlain)
		if zipped {
			format = formatZlib
		}
		stored := sealed(format, payload)
		const max = 1 << 16
		var out []byte
		var err error
		if got := allocated(func() { out, err = AppendJSON(nil, stored, max) }); got > uint64(1<<20+8*max+8*len(stored)) {
			t.Fatalf("%d bytes allocated for %d", got, len(stored))
		}
		if pack, perr := AppendMessagePack(nil, stored, max); perr == nil {
			if same, err2 := AppendMessagePackJSON(nil, pack, max); !bytes.Equal(same, out) || (err == nil) != (err2 == nil) {
				t.Fatalf("its MessagePack is %.200q, %v; it is %.200q, %v", same, err2, out, err)
			}
		} else if err == nil && CodeOf(perr) != CodeTooLarge {
			t.Fatalf("read %.200q, and as MessagePack: %v", out, perr)
		}
		if err != nil {
			if CodeOf(err) == "" {
				t.Fatalf("an error without a code: %v", err)
			}
			return
		}
		if len(out) > max || !json.Valid(out) || !utf8.Valid(out) {
			t.Fatalf("read %d bytes: %.200q", len(out), out)
		}
		if _, err := Hash(stored); err != nil {
			t.Fatal(err)
		}
		again, err := Encode(nil, out, Limits{Depth: MaxDepth})
		if err != nil {
			if CodeOf(err) != CodeDuplicateKey {
				t.Fatalf("%.200q cannot be put: %v", out, err)
			}
			return
		}
		if ok, err := Equal(stored, again); err != nil || !ok {
			t.Fatalf("%.200q is not the same when put again: %v", out, err)
		}
	})
}

// FuzzRoundTrip: a text is refused, or comes back token for token.
func FuzzRoundTrip(f *testing.F) {
	for _, in := range []string{
		trip, `-0`, `1e400`, `123456789012345678901234567890`, `1.50`, `{"":"\u0000","\ud83d\ude00":[[],{}]}`, ` [1 , 2.5e-7,"\/"] `, `{"a":1,"a":2}`,
		`"\ud800"`, "\"\xff\"", `1 2`, `[1,]`, ``, `1.7976931348623157e308`, `4.9406564584124654e-324`, `100000000000000000000.0`, `0.000001`, `-1.5e-10`,
	} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		stored, err := Encode(nil, in, Limits{})
		if err != nil {
			code := CodeOf(err)
			if code == "" {
				t.Fatalf("an error without a code: %v", err)
			}
			// The standard library lets pass what these two name, and turns
			// lone surrogates into U+FFFD.
			if json.Valid(in) && code == CodeInvalidJSON && !bytes.Contains(in, []byte(`\u`)) {
				t.Fatalf("%q is JSON: %v", in, err)
			}
			return
		}
		if !json.Valid(in) {
			t.Fatalf("%q is not JSON, and was taken", in)
		}
		out, err := AppendJSON(nil, stored, len(in))
		if err != nil {
			t.Fatal(err)
		}
		want, err := tokens(in)
		if err != nil {
			return // the token reader of the standard library is less able
		}
		got, err := tokens(out)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q came back as %q:\n%s", in, out, diff)
		}
	})
}
