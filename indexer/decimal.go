package indexer

import "strings"

// The digits that a decimal may need before and after the point: DECIMAL(38,10).
const (
	decimalWhole    = 28
	decimalFraction = 10
)

// number is a JSON number taken apart: 0.digits x 10^point, digits without
// leading or trailing zeros, so that equal numbers are equal structs.
type number struct {
	negative bool
	digits   string
	point    int
}

// cutNumber reads a JSON number; ok is false for anything else. It costs no
// more than the text is long, whatever the exponent.
func cutNumber(text string) (number, bool) {
	var n number
	s, negative := strings.CutPrefix(text, "-")
	whole := leadingDigits(s)
	if whole == "" || len(whole) > 1 && whole[0] == '0' {
		return n, false
	}
	s = s[len(whole):]
	fraction := ""
	if strings.HasPrefix(s, ".") {
		if fraction = leadingDigits(s[1:]); fraction == "" {
			return n, false
		}
		s = s[1+len(fraction):]
	}
	exponent := 0
	if s != "" {
		if s[0] != 'e' && s[0] != 'E' {
			return n, false
		}
		s = s[1:]
		minus := strings.HasPrefix(s, "-")
		if minus || strings.HasPrefix(s, "+") {
			s = s[1:]
		}
		if s == "" || leadingDigits(s) != s {
			return n, false
		}
		for _, c := range []byte(s) {
			if exponent = exponent*10 + int(c-'0'); exponent > 1<<30 {
				exponent = 1 << 30 // far out of every range below
			}
		}
		if minus {
			exponent = -exponent
		}
	}
	digits := whole + fraction
	n.point = len(whole) + exponent
	trimmed := strings.TrimLeft(digits, "0")
	n.point -= len(digits) - len(trimmed)
	n.digits = strings.TrimRight(trimmed, "0")
	if n.digits == "" {
		return number{}, true // 0, -0, 0e5
	}
	n.negative = negative
	return n, true
}

func leadingDigits(s string) string {
	i := 0
	for i < len(s) && '0' <= s[i] && s[i] <= '9' {
		i++
	}
	return s[:i]
}

// plain writes the number without an exponent and without needless zeros; ok
// is false if it needs more digits than that before or after the point.
func (n number) plain(whole, fraction int) (string, bool) {
	if n.digits == "" {
		return "0", true
	}
	if n.point > whole || len(n.digits)-n.point > fraction {
		return "", false
	}
	var b strings.Builder
	if n.negative {
		b.WriteByte('-')
	}
	switch {
	case n.point <= 0:
		b.WriteString("0.")
		b.WriteString(strings.Repeat("0", -n.point))
		b.WriteString(n.digits)
	case n.point >= len(n.digits):
		b.WriteString(n.digits)
		b.WriteString(strings.Repeat("0", n.point-len(n.digits)))
	default:
		b.WriteString(n.digits[:n.point])
		b.WriteByte('.')
		b.WriteString(n.digits[n.point:])
	}
	return b.String(), true
}

// parseDecimal reads a number that fits exactly.
func parseDecimal(text string) (Value, error) {
	n, ok := cutNumber(text)
	if !ok {
		return Value{}, errMismatch
	}
	plain, ok := n.plain(decimalWhole, decimalFraction)
	if !ok {
		return Value{}, errMismatch
	}
	return Value{typ: Decimal, str: plain}, nil
}
