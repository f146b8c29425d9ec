package body

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// sealed returns a payload with a right header.
func sealed(format byte, payload []byte) []byte { return seal(nil, format, payload) }

func deflate(t testing.TB, payload []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	if _, err := w.Write(payload); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

var hostilePayloads = map[string][]byte{
	"nothing":              {},
	"array32 of 2^32-1":    unhex("dd ffffffff"),
	"array32 cut":          unhex("dd ffffff"),
	"array16 of 65535":     unhex("dc ffff c0"),
	"map32 of 2^32-1":      unhex("df ffffffff"),
	"map16":                unhex("de ffff a0c0"),
	"map half":             unhex("82 a161c0 a162"),
	"map of one without":   unhex("81"),
	"str32 of 2^32-1":      unhex("db ffffffff 61"),
	"str32 cut":            unhex("db ffff"),
	"str16":                unhex("da 0002 61"),
	"str8":                 unhex("d9 02 61"),
	"str8 cut":             unhex("d9"),
	"fixstr":               unhex("a2 61"),
	"not UTF-8":            unhex("a1 ff"),
	"surrogate":            unhex("a3 eda080"),
	"key not a string":     unhex("81 01 c0"),
	"key nil":              unhex("81 c0 c0"),
	"key a map":            unhex("81 80 c0"),
	"never used":           unhex("c1"),
	"bin8":                 unhex("c4 01 61"),
	"float32":              unhex("ca 3f800000"),
	"NaN":                  unhex("cb 7ff8000000000001"),
	"infinity":             unhex("cb 7ff0000000000000"),
	"-infinity":            unhex("cb fff0000000000000"),
	"float64 cut":          unhex("cb 7ff000"),
	"uint8 cut":            unhex("cc"),
	"uint64 cut":           unhex("cf 00"),
	"int16 cut":            unhex("d1 00"),
	"ext8 cut":             unhex("c7"),
	"ext8 of 255":          unhex("c7 ff 01 30"),
	"ext32 of 2^32-1":      unhex("c9 ffffffff 01 30"),
	"ext32 cut":            unhex("c9 ffffffff"),
	"ext8 empty":           unhex("c7 00 01"),
	"fixext1 cut":          unhex("d4 01"),
	"fixext16 cut":         unhex("d8 01 30"),
	"ext type 2":           unhex("d4 02 30"),
	"timestamp":            unhex("d6 ff 00000000"),
	"ext not a number":     unhex("d4 01 61"),
	"ext leading zero":     unhex("d5 01 3031"),
	"ext plus":             unhex("d5 01 2b31"),
	"ext no digit":         unhex("d5 01 312e"),
	"ext e":                unhex("d5 01 3165"),
	"ext minus":            unhex("d4 01 2d"),
	"ext two numbers":      append(unhex("c7 03 01"), "1,2"...),
	"trailing":             unhex("c0 c0"),
	"trailing in array":    unhex("91 c0 c0"),
	"array without end":    unhex("93 c0 c0"),
	"deeper than MaxDepth": append(bytes.Repeat([]byte{0x91}, MaxDepth+1), 0xc0),
	"a million deep":       append(bytes.Repeat([]byte{0x91}, 1000000), 0xc0),
	"maps a million deep":  bytes.Repeat([]byte{0x81, 0xa0}, 1000000),
}

// Hostile bytes behind a right checksum are refused, by every reader.
func TestHostilePayloads(t *testing.T) {
	for name, p := range hostilePayloads {
		for _, stored := range [][]byte{sealed(formatPlain, p), sealed(formatZlib, deflate(t, p))} {
			out, err := AppendJSON([]byte("kept"), stored, 0)
			if CodeOf(err) != CodeCorrupt {
				t.Errorf("%s, format %d: got %v, want %s", name, stored[0], err, CodeCorrupt)
			}
			if string(out) != "kept" {
				t.Errorf("%s: dst came back as %.40q", name, out)
			}
			if out, err := AppendMessagePack([]byte("kept"), stored, 0); CodeOf(err) != CodeCorrupt || string(out) != "kept" {
				t.Errorf("%s: AppendMessagePack: %v, and %.40q", name, err, out)
			}
			if _, err := Hash(stored); CodeOf(err) != CodeCorrupt {
				t.Errorf("%s: Hash: %v", name, err)
			}
			if _, err := Equal(sealed(formatPlain, []byte{mpNil}), stored); CodeOf(err) != CodeCorrupt {
				t.Errorf("%s: Equal: %v", name, err)
			}
			if _, err := Equal(stored, stored); CodeOf(err) != CodeCorrupt {
				t.Errorf("%s: Equal with itself: %v", name, err)
			}
		}
	}
}

// MessagePack of any length comes back up to its limit, and is not returned
// above.
func TestMessagePackLimit(t *testing.T) {
	for _, text := range []string{"[" + strings.Repeat("1.5,", 1000) + "7]", `"` + strings.Repeat("no end ", 1000) + `"`} {
		stored := mustEncode(t, []byte(text))
		pack, err := AppendMessagePack(nil, stored, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := AppendMessagePackJSON(nil, pack, 0); err != nil || string(got) != text {
			t.Errorf("%.40q, %v", got, err)
		}
		if again, err := AppendMessagePack([]byte("a"), stored, len(pack)); err != nil || string(again) != "a"+string(pack) {
			t.Errorf("at the limit: %v", err)
		}
		if _, err := AppendMessagePack(nil, stored, len(pack)-1); CodeOf(err) != CodeTooLarge {
			t.Errorf("above the limit: %v", err)
		}
		if _, err := AppendMessagePackJSON(nil, pack, len(text)-1); CodeOf(err) != CodeTooLarge {
			t.Errorf("above the limit of the text: %v", err)
		}
	}
}

func TestHostileStored(t *testing.T) {
	good := sealed(formatZlib, deflate(t, []byte{mpNil}))
	if out, err := AppendJSON(nil, good, 0); err != nil || string(out) != "null" {
		t.Fatal(string(out), err)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	raw := good[headerLen:]
	badAdler := bytes.Clone(raw)
	badAdler[len(badAdler)-1] ^= 1
	for _, tt := range []struct {
		name   string
		stored []byte
		code   string
		text   string
	}{
		{"nil", nil, CodeCorrupt, "empty"},
		{"format only", []byte{1}, CodeCorrupt, "1 bytes"},
		{"header only", []byte{2, 0, 0, 0, 0}, CodeCorrupt, "5 bytes"},
		{"format 0", sealed(0, []byte{mpNil}), CodeUnknownFormat, "format 0"},
		{"format 3", sealed(3, []byte{mpNil}), CodeUnknownFormat, "format 3, which is reserved"},
		{"format 4", sealed(4, []byte{mpNil}), CodeUnknownFormat, "format 4, which is reserved"},
		{"format 5", []byte{5}, CodeUnknownFormat, "format 5, which is reserved"},
		{"format 6", sealed(6, []byte{mpNil}), CodeUnknownFormat, "format 6"},
		{"JSON", []byte(`{"a":1}`), CodeUnknownFormat, "format 123"},
		{"flipped bit", flipped, CodeCorrupt, "checksum"},
		{"other checksum", []byte{2, 0, 0, 0, 0, mpNil}, CodeCorrupt, "checksum"},
		{"zlib taken for plain", sealed(formatPlain, raw), CodeCorrupt, "follow"},
		{"plain taken for zlib", sealed(formatZlib, []byte{mpNil}), CodeCorrupt, "zlib"},
		{"zlib cut", sealed(formatZlib, raw[:len(raw)-5]), CodeCorrupt, "zlib"},
		{"zlib header cut", sealed(formatZlib, raw[:1]), CodeCorrupt, "zlib"},
		{"adler", sealed(formatZlib, badAdler), CodeCorrupt, "zlib"},
		{"after zlib", sealed(formatZlib, append(bytes.Clone(raw), 0)), CodeCorrupt, "follow the zlib"},
		{"zlib dictionary", sealed(formatZlib, unhex("78 bb 00000000 03 00")), CodeCorrupt, "zlib"},
	} {
		_, err := AppendJSON(nil, tt.stored, 0)
		if CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: got %v, want %s with %q", tt.name, err, tt.code, tt.text)
		}
	}
}

// manyZeros is a right payload, longer than any that is read.
func manyZeros() []byte {
	n := payloadCap(MaxBytes) + 1
	return append(binary.BigEndian.AppendUint32([]byte{mpArray32}, uint32(n)), make([]byte, n)...)
}

// A bomb is refused at the cap, whichever way it is packed.
func TestCap(t *testing.T) {
	zeros := manyZeros()
	bomb := sealed(formatZlib, deflate(t, zeros))
	for _, max := range []int{0, 1, 1000, MaxBytes} {
		if _, err := AppendJSON(nil, bomb, max); CodeOf(err) != CodeTooLarge {
			t.Errorf("max %d: %v", max, err)
		}
	}
	if _, err := AppendJSON(nil, sealed(formatPlain, zeros), 1000); CodeOf(err) != CodeTooLarge {
		t.Error(err)
	}
	// Small when stored, six times as long as text.
	control := mustEncode(t, []byte(`"`+strings.Repeat(`\u0000`, 1000)+`"`))
	if _, err := AppendJSON(nil, control, 6001); CodeOf(err) != CodeTooLarge {
		t.Error(err)
	}
	if out, err := AppendJSON(nil, control, 6002); err != nil || len(out) != 6002 {
		t.Error(len(out), err)
	}
}

// Memory is a small multiple of input and cap, however the input lies.
func TestHostileMemory(t *testing.T) {
	zeros := manyZeros()
	inputs := map[string][]byte{"bomb": sealed(formatZlib, deflate(t, zeros))}
	for name, p := range hostilePayloads {
		inputs[name] = sealed(formatPlain, p)
		inputs[name+", zipped"] = sealed(formatZlib, deflate(t, p))
	}
	const max = 100_000
	for name, stored := range inputs {
		got := allocated(func() {
			if _, err := AppendJSON(nil, stored, max); err == nil {
				t.Errorf("%s passed", name)
			}
		})
		// 64 KiB: a new inflater, with its tables.
		if limit := uint64(64<<10 + 8*max + 8*len(stored)); got > limit {
			t.Errorf("%s: %d bytes allocated for %d, want at most %d", name, got, len(stored), limit)
		}
	}
}

// allocated returns how many bytes f allocates. Tests that call it must not
// run in parallel with others.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Any prefix and any flipped bit of a stored body is an error: the checksum
// covers all but the format byte, and no format takes another's payload.
func TestDamage(t *testing.T) {
	for _, json := range []string{trip, "[" + strings.Repeat(trip+",", 3) + "0]"} {
		stored := mustEncode(t, []byte(json))
		for n := range stored {
			if _, err := AppendJSON(nil, stored[:n], 0); err == nil {
				t.Fatalf("a prefix of %d of %d bytes passed", n, len(stored))
			}
		}
		for bit := range len(stored) * 8 {
			damaged := bytes.Clone(stored)
			damaged[bit/8] ^= 1 << (bit % 8)
			var e *Error
			if _, err := AppendJSON(nil, damaged, 0); !errors.As(err, &e) {
				t.Fatalf("bit %d flipped: %v", bit, err)
			}
		}
	}
}
