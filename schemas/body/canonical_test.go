package body

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestEqual(t *testing.T) {
	for _, same := range [][]string{
		{"1", "1.0", "10e-1", "0.1e1", "1E0", "1e+0", "1e-0", "100E-2", "0.00001e5"},
		{"0", "-0", "0.0", "-0.000", "0e999999999", "-0E-99999999999999999999"},
		{"1e999999999", "10e999999998", "0.1E+1000000000", "1.000e0999999999"},
		{"1e99999999999999999999", "10e99999999999999999998", "0.01e100000000000000000001"},
		{"1e-99999999999999999999", "10e-100000000000000000000", "0.1e-99999999999999999998"},
		{"1e1000000000000000000", "10e999999999999999999", "100e999999999999999998"},
		{"1500", "15e2", "1.5e3", "1500.000"},
		{"18446744073709551616", "1.8446744073709551616e19"},
		{"40.767937", "40.7679370", "40767937e-6"},
		{`"é"`, `"\u00e9"`, `"\u00E9"`},
		{`"😀/"`, `"\ud83d\ude00\/"`},
		{`{"a":1,"b":{"c":[],"d":null}}`, `{"b":{"d":null,"c":[]},"a":1.0}`, ` { "\u0062" : {"d":null , "c":[ ]} , "a":10e-1 }`},
	} {
		for _, a := range same {
			for _, b := range same {
				if ok, err := Equal(mustEncode(t, []byte(a)), mustEncode(t, []byte(b))); err != nil || !ok {
					t.Errorf("%s and %s: %v, %v, want equal", a, b, ok, err)
				}
			}
		}
	}
	for _, other := range [][2]string{
		{"1", "-1"}, {"1", "1.0000000000000000000000001"}, {"0.1", "0.1000000000000000055511151231257827"},
		{"9007199254740992", "9007199254740993"}, {"9007199254740993.0", "9007199254740992.0"},
		{"1e999999999", "1e999999998"}, {"1e99999999999999999999", "1e99999999999999999998"}, {"1e99999999999999999999", "1e-99999999999999999999"},
		{"1", `"1"`}, {"1", "true"}, {"0", "false"}, {"null", "0"}, {"null", `""`}, {"[]", "{}"}, {"[]", "null"},
		{"[1,2]", "[2,1]"}, {"[1]", "[1,1]"}, {"[[]]", "[]"}, {`{"a":1}`, `{"a":2}`}, {`{"a":1}`, `{"b":1}`}, {`{"a":1}`, `{"a":1,"b":null}`},
		{`"é"`, "\"e\u0301\""}, {`"a"`, `"A"`}, {`"\u0000"`, `""`}, {`{"a":{"b":1}}`, `{"a":{"b":1,"c":2}}`},
	} {
		if ok, err := Equal(mustEncode(t, []byte(other[0])), mustEncode(t, []byte(other[1]))); err != nil || ok {
			t.Errorf("%s and %s: %v, %v, want different", other[0], other[1], ok, err)
		}
	}
}

// Two formats of one value are equal.
func TestEqualAcrossFormats(t *testing.T) {
	e := encoders.Get().(*encoder)
	defer e.release()
	if err := e.encode([]byte(trip), Limits{}.withDefaults()); err != nil {
		t.Fatal(err)
	}
	plain, zipped := sealed(formatPlain, e.payload), sealed(formatZlib, deflate(t, e.payload))
	if ok, err := Equal(plain, zipped); err != nil || !ok {
		t.Error(ok, err)
	}
	a, _ := Hash(plain)
	b, err := Hash(zipped)
	if err != nil || a != b || HashJSON([]byte(trip)) != a {
		t.Error("the hash depends on the format", err)
	}
}

// ETags that clients keep depend on these lines. The hashes were computed by
// sha256sum over the canonical text.
func TestCanonicalVectors(t *testing.T) {
	for _, v := range [][3]string{
		{`null`, `null`, "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"},
		{`-0.0`, `0`, "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9"},
		{`{"b":[1500,0.25,-1e400],"a b":"\u00e9\u0001\/","a":{}}`, `{"a b":"é\u0001/","a":{},"b":[15e2,25e-2,-1e400]}`,
			"6cb7d78713448f29188e91c6fbffb66d70c1fe0da36f2368acb7f2a669c93d92"},
	} {
		c := canonical{}
		if err := c.read(mustEncode(t, []byte(v[0]))); err != nil {
			t.Fatal(err)
		}
		if got := string(c.form()); got != v[1] {
			t.Errorf("the canonical form of %s is %s, want %s", v[0], got, v[1])
		}
		got, err := Hash(mustEncode(t, []byte(v[0])))
		if err != nil || hex.EncodeToString(got[:]) != v[2] {
			t.Errorf("the hash of %s is %x, want %s", v[0], got, v[2])
		}
	}
}

// The canonical form of the worst bodies takes linear time: each level of
// these is out of order, so whoever moves or reads a member once per level
// around it needs a thousand times as long as for one level.
func TestCanonicalIsLinear(t *testing.T) {
	inner := "[" + strings.Repeat("[],", 1<<18) + "0]"
	took := func(depth int) time.Duration {
		stored := mustEncode(t, nested(depth, `{"b":1,"a":`, inner, "}"))
		start := time.Now()
		if _, err := Hash(stored); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	took(1) // fills the pools
	if one, many := took(1), took(DefaultDepth-2); many > 100*one {
		t.Errorf("one level takes %v, %d levels take %v", one, DefaultDepth-2, many)
	}
	many := make([]string, 50000)
	for i := range many {
		many[i] = fmt.Sprintf(`"%d":%d`, i, i)
	}
	a := mustEncode(t, []byte(join("{", many, "}")))
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(many), func(i, j int) { many[i], many[j] = many[j], many[i] })
	if ok, err := Equal(a, mustEncode(t, []byte(join("{", many, "}")))); err != nil || !ok {
		t.Error(ok, err)
	}
}

// Comparing the largest numbers costs memory like their text.
func TestNumbersAreNotExpanded(t *testing.T) {
	a, b := mustEncode(t, []byte("1e999999999")), mustEncode(t, []byte("10e999999998"))
	if got := allocated(func() {
		if ok, err := Equal(a, b); err != nil || !ok {
			t.Error(ok, err)
		}
	}); got > 64<<10 {
		t.Errorf("%d bytes allocated", got)
	}
	long := "1e" + strings.Repeat("9", 1<<20)
	form := appendCanonicalNumber(nil, []byte(long))
	if !bytes.Equal(form, []byte(long)) {
		t.Error("a long exponent changed")
	}
	if form = appendCanonicalNumber(nil, []byte("10"+long[1:])); string(form) != "1e1"+strings.Repeat("0", 1<<20) {
		t.Errorf("the carry came out as %.40s…", form)
	}
}
