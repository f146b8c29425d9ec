package body

import (
	"bytes"
	"strconv"
)

// isNumber says whether text is a number by the grammar of RFC 8259.
func isNumber(text []byte) bool {
	if len(text) > 0 && text[0] == '-' {
		text = text[1:]
	}
	n := digits(text)
	if n == 0 || n > 1 && text[0] == '0' {
		return false
	}
	text = text[n:]
	if len(text) > 0 && text[0] == '.' {
		if n = digits(text[1:]); n == 0 {
			return false
		}
		text = text[1+n:]
	}
	if len(text) > 0 && text[0]|0x20 == 'e' {
		text = text[1:]
		if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
			text = text[1:]
		}
		if n = digits(text); n == 0 {
			return false
		}
		text = text[n:]
	}
	return len(text) == 0
}

// digits counts the leading digits.
func digits(b []byte) int {
	for i, c := range b {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(b)
}

// appendCanonicalNumber appends the one spelling that all spellings of a
// number share: its significant digits without zeros at either end, then e and
// the exponent if that is not zero; 0 for zero. So 1, 1.0 and 10e-1 are 1, and
// 1500 is 15e2. text must be a valid number. Nothing is ever expanded: the
// result is at most a few bytes longer than text.
func appendCanonicalNumber(dst, text []byte) []byte {
	negative := text[0] == '-'
	if negative {
		text = text[1:]
	}
	var exp []byte
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		text, exp = text[:i], text[i+1:]
	}
	whole, frac, _ := bytes.Cut(text, []byte{'.'})
	frac = bytes.TrimRight(frac, "0")
	shift := -int64(len(frac))
	if len(frac) == 0 {
		trimmed := bytes.TrimRight(whole, "0")
		shift = int64(len(whole) - len(trimmed))
		whole = trimmed
	}
	whole = bytes.TrimLeft(whole, "0")
	if len(whole) == 0 {
		frac = bytes.TrimLeft(frac, "0")
	}
	if len(whole)+len(frac) == 0 {
		return append(dst, '0')
	}
	if negative {
		dst = append(dst, '-')
	}
	dst = append(append(dst, whole...), frac...)
	return appendExponent(dst, exp, shift)
}

// appendExponent appends e and exp+shift, or nothing if that is zero. exp is
// the exponent's text, of any length, or empty.
func appendExponent(dst, exp []byte, shift int64) []byte {
	negative := len(exp) > 0 && exp[0] == '-'
	exp = bytes.TrimLeft(exp, "+-")
	exp = bytes.TrimLeft(exp, "0")
	if len(exp) < 18 {
		n, _ := strconv.ParseInt("0"+string(exp), 10, 64) // digits that fit
		if negative {
			n = -n
		}
		if n += shift; n == 0 {
			return dst
		}
		return strconv.AppendInt(append(dst, 'e'), n, 10)
	}
	// At least 1e17, and shift is below the length of a body: the sign stays.
	dst = append(dst, 'e')
	if negative {
		dst = append(dst, '-')
		shift = -shift
	}
	start := len(dst)
	dst = append(append(dst, '0'), exp...) // room for a carry
	for i := len(dst) - 1; shift != 0; i-- {
		v := int64(dst[i]-'0') + shift
		digit := (v%10 + 10) % 10
		dst[i] = '0' + byte(digit)
		shift = (v - digit) / 10
	}
	tail := bytes.TrimLeft(dst[start:], "0")
	return append(dst[:start], tail...)
}
