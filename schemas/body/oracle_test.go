package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"sort"
	"strings"

	"pgregory.net/rapid"
)

// The oracle knows JSON by the standard library and numbers by big.Int, and
// shares nothing with the package.

// tokens returns the text's tokens, numbers as their text.
func tokens(text []byte) ([]json.Token, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var out []json.Token
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, tok)
	}
}

// plainForm spells a value so that equal values have the same spelling.
func plainForm(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var members []string
		for k, x := range v {
			members = append(members, fmt.Sprintf("%q:%s", k, plainForm(x)))
		}
		sort.Strings(members)
		return "{" + strings.Join(members, ",") + "}"
	case []any:
		var items []string
		for _, x := range v {
			items = append(items, plainForm(x))
		}
		return "[" + strings.Join(items, ",") + "]"
	case json.Number:
		return plainNumber(string(v))
	case string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprint(v)
}

// plainNumber returns sign, digits and exponent.
func plainNumber(s string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	exp := new(big.Int)
	if exponent != "" {
		exp.SetString(exponent, 10)
	}
	if i := strings.IndexByte(mantissa, '.'); i >= 0 {
		exp.Sub(exp, big.NewInt(int64(len(mantissa)-i-1)))
		mantissa = mantissa[:i] + mantissa[i+1:]
	}
	n, _ := new(big.Int).SetString(mantissa, 10)
	if n.Sign() == 0 {
		return "zero"
	}
	ten, rest := big.NewInt(10), new(big.Int)
	for {
		q := new(big.Int)
		if q.QuoRem(n, ten, rest); rest.Sign() != 0 {
			return n.String() + "*10^" + exp.String()
		}
		n = q
		exp.Add(exp, big.NewInt(1))
	}
}

func plainJSON(text []byte) string {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return plainForm(v)
}

// drawNumber draws any number of the grammar.
func drawNumber(t *rapid.T) string {
	return rapid.OneOf(
		rapid.Map(rapid.Int64(), func(n int64) string { return fmt.Sprint(n) }),
		rapid.Map(rapid.Uint64(), func(n uint64) string { return fmt.Sprint(n) }),
		rapid.Map(rapid.Float64(), func(f float64) string { b, _ := json.Marshal(f); return string(b) }),
		rapid.Map(rapid.Int32Range(-1e9, 1e9), func(n int32) string { return fmt.Sprintf("%d.%06d", n/1e6, max(n, -n)%1e6) }),
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,25})?`),
		rapid.StringMatching(`-?(0|[1-9]0{0,3})(\.0{1,3}[0-9]?)?([eE][+-]?0{0,2}[0-9])?`),
	).Draw(t, "number")
}

// drawString draws a quoted string with random escapes.
func drawString(t *rapid.T) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range rapid.OneOf(rapid.StringOfN(rapid.RuneFrom([]rune("ab\x00\n\"\\/é😀")), 0, 3, -1), rapid.StringN(0, 40, -1)).Draw(t, "string") {
		switch {
		case r < 0x20 || r == '"' || r == '\\' || rapid.IntRange(0, 9).Draw(t, "escape") == 0:
			if r > 0xffff {
				fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// drawJSON draws a text with random white space, and no duplicate keys.
func drawJSON(t *rapid.T, depth int) string {
	space := func() string { return rapid.SampledFrom([]string{"", "", "", " ", "\n\t"}).Draw(t, "space") }
	kind := rapid.IntRange(0, 6).Draw(t, "kind")
	if depth == 0 && kind > 4 {
		kind -= 4
	}
	switch kind {
	case 0:
		return rapid.SampledFrom([]string{"null", "true", "false"}).Draw(t, "literal")
	case 1, 2:
		return drawNumber(t)
	case 3, 4:
		return drawString(t)
	}
	n := rapid.SampledFrom([]int{0, 1, 2, 3, 17}).Draw(t, "items")
	var items []string
	keys := map[string]bool{}
	for range n {
		v := space() + drawJSON(t, depth-1) + space()
		if kind == 5 {
			items = append(items, v)
			continue
		}
		key := drawString(t)
		if plain := plainJSON([]byte(key)); !keys[plain] {
			keys[plain] = true
			items = append(items, space()+key+space()+":"+v)
		}
	}
	if kind == 5 {
		return "[" + strings.Join(items, ",") + "]"
	}
	return "{" + strings.Join(items, ",") + "}"
}

// respell returns the same value in another spelling.
func respell(t *rapid.T, text []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	var b bytes.Buffer
	var write func(v any)
	write = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			var keys []string
			for k := range v {
				keys = append(keys, k)
			}
			sort.Strings(keys)
			keys = rapid.Permutation(keys).Draw(t, "order")
			b.WriteByte('{')
			for i, k := range keys {
				if i > 0 {
					b.WriteByte(',')
				}
				q, _ := json.Marshal(k)
				b.Write(q)
				b.WriteByte(':')
				write(v[k])
			}
			b.WriteByte('}')
		case []any:
			b.WriteByte('[')
			for i, x := range v {
				if i > 0 {
					b.WriteByte(',')
				}
				write(x)
			}
			b.WriteByte(']')
		case json.Number:
			b.WriteString(respellNumber(t, string(v)))
		default:
			q, _ := json.Marshal(v)
			b.Write(q)
		}
	}
	write(v)
	return b.Bytes()
}

func respellNumber(t *rapid.T, s string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	exp := new(big.Int)
	if exponent != "" {
		exp.SetString(exponent, 10)
	}
	switch rapid.IntRange(0, 3).Draw(t, "respell") {
	case 0:
		if !strings.Contains(mantissa, ".") {
			mantissa += "."
		}
		mantissa += "00"
	case 1:
		if !strings.Contains(mantissa, ".") && strings.Trim(mantissa, "-0") != "" {
			mantissa += "0"
			exp.Sub(exp, big.NewInt(1))
		}
	case 2:
		if i := strings.IndexByte(mantissa, '.'); i >= 0 {
			exp.Sub(exp, big.NewInt(int64(len(mantissa)-i-1)))
			sign := ""
			digits := strings.Replace(mantissa, ".", "", 1)
			if digits[0] == '-' {
				sign, digits = "-", digits[1:]
			}
			if digits = strings.TrimLeft(digits, "0"); digits == "" {
				digits = "0"
			}
			mantissa = sign + digits
		}
	}
	return mantissa + "E" + exp.String()
}
