package body

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

// JSON in, the same JSON out: every token, in order, numbers by their text,
// and no byte more than a compact text needs.
func TestRoundTripProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := []byte(drawJSON(t, 4))
		stored, err := Encode(nil, in, Limits{})
		if err != nil {
			t.Fatalf("Encode(%s): %v", in, err)
		}
		out, err := AppendJSON(nil, stored, len(in))
		if err != nil {
			t.Fatalf("AppendJSON(%s): %v", in, err)
		}
		want, err := tokens(in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tokens(out)
		if err != nil {
			t.Fatalf("%s came back as %s: %v", in, out, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s came back as %s:\n%s", in, out, diff)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, out); err != nil || compact.String() != string(out) {
			t.Fatalf("%s is not compact", out)
		}
		// Whatever is put again in its own spelling is the same bytes.
		again, err := Encode(nil, out, Limits{})
		if err != nil || !bytes.Equal(again, stored) {
			t.Fatalf("%s stored twice: % x and % x, %v", in, stored, again, err)
		}
	})
}

func TestEqualProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := []byte(drawJSON(t, 3))
		b := respell(t, a)
		sa, sb := mustEncode(t, a), mustEncode(t, b)
		if ok, err := Equal(sa, sb); err != nil || !ok {
			t.Fatalf("%s and %s are not the same: %v", a, b, err)
		}
		ha, _ := Hash(sa)
		hb, err := Hash(sb)
		if err != nil || ha != hb {
			t.Fatalf("%s and %s have two hashes: %v", a, b, err)
		}
	})
}

// Small values, so that equal ones meet; Equal and the oracle must agree.
func TestEqualAgreesWithOracle(t *testing.T) {
	small := rapid.Custom(func(t *rapid.T) []byte {
		number := rapid.StringMatching(`-?(0|10{0,2})(\.0{1,2}1?)?([eE][+-]?0?[0-2])?`)
		scalar := rapid.OneOf(number, rapid.SampledFrom([]string{`""`, `"1"`, `"\u0031"`, `null`, `true`, `"a"`, `"A"`}))
		return []byte(rapid.OneOf(
			scalar,
			rapid.Map(rapid.SliceOfN(scalar, 0, 2), func(v []string) string { return join("[", v, "]") }),
			rapid.Custom(func(t *rapid.T) string {
				var members []string
				for _, k := range rapid.Permutation([]string{`"a":`, `"b":`, `"a b":`}).Draw(t, "keys")[:rapid.IntRange(0, 3).Draw(t, "n")] {
					members = append(members, k+scalar.Draw(t, "value"))
				}
				return join("{", members, "}")
			}),
		).Draw(t, "json"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := small.Draw(t, "a"), small.Draw(t, "b")
		want := plainJSON(a) == plainJSON(b)
		if got, err := Equal(mustEncode(t, a), mustEncode(t, b)); err != nil || got != want {
			t.Fatalf("Equal(%s, %s) = %v, %v, want %v", a, b, got, err, want)
		}
	})
}

func TestCanonicalNumberProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawNumber(t)
		form := appendCanonicalNumber(nil, []byte(a))
		if !isNumber(form) || plainNumber(string(form)) != plainNumber(a) {
			t.Fatalf("the canonical form of %s is %s", a, form)
		}
		b := respellNumber(t, a)
		if got := appendCanonicalNumber(nil, []byte(b)); string(got) != string(form) {
			t.Fatalf("%s is %s, but %s is %s", a, form, b, got)
		}
	})
}

// What the package writes is MessagePack to others. (Their decoding into any is
// safe here only because the bytes are ours.)
func TestOthersReadTheMessagePack(t *testing.T) {
	for _, in := range []string{trip, `[0,-1,-33,200,70000,5000000000,-200,-70000,-5000000000,18446744073709551615,40.767937,null,true,"é"]`} {
		e := encoders.Get().(*encoder)
		defer e.release()
		if err := e.encode([]byte(in), Limits{}.withDefaults()); err != nil {
			t.Fatal(err)
		}
		msgpack.RegisterExtDecoder(extNumber, float64(0), func(d *msgpack.Decoder, v reflect.Value, n int) error {
			text := make([]byte, n)
			if err := d.ReadFull(text); err != nil {
				return err
			}
			var f float64
			if err := json.Unmarshal(text, &f); err != nil {
				return err
			}
			v.SetFloat(f)
			return nil
		})
		var got, want any
		if err := msgpack.Unmarshal(e.payload, &got); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(again, &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(in), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}
