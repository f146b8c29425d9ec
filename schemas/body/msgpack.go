package body

import (
	"encoding/binary"
	"math"
	"strconv"
)

// The MessagePack bytes that payloads consist of
// (https://github.com/msgpack/msgpack/blob/master/spec.md). Others (bin,
// float32, other extensions) are never written, and refused.
const (
	mpFixMap   = 0x80 // to 0x8f
	mpFixArray = 0x90 // to 0x9f
	mpFixStr   = 0xa0 // to 0xbf
	mpNil      = 0xc0
	mpFalse    = 0xc2
	mpTrue     = 0xc3
	mpExt8     = 0xc7
	mpExt16    = 0xc8
	mpExt32    = 0xc9
	mpFloat64  = 0xcb
	mpUint8    = 0xcc
	mpUint16   = 0xcd
	mpUint32   = 0xce
	mpUint64   = 0xcf
	mpInt8     = 0xd0
	mpInt16    = 0xd1
	mpInt32    = 0xd2
	mpInt64    = 0xd3
	mpFixExt1  = 0xd4
	mpFixExt2  = 0xd5
	mpFixExt4  = 0xd6
	mpFixExt8  = 0xd7
	mpFixExt16 = 0xd8
	mpStr8     = 0xd9
	mpStr16    = 0xda
	mpStr32    = 0xdb
	mpArray16  = 0xdc
	mpArray32  = 0xdd
	mpMap16    = 0xde
	mpMap32    = 0xdf
	mpNegInt   = 0xe0 // to 0xff
)

// extNumber is the extension type of a number kept as JSON text.
const extNumber = 1

func appendUint(dst []byte, n uint64) []byte {
	switch {
	case n <= 0x7f:
		return append(dst, byte(n))
	case n <= math.MaxUint8:
		return append(dst, mpUint8, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, mpUint16), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, mpUint32), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, mpUint64), n)
}

func appendInt(dst []byte, n int64) []byte {
	switch {
	case n >= 0:
		return appendUint(dst, uint64(n))
	case n >= -32:
		return append(dst, byte(n))
	case n >= math.MinInt8:
		return append(dst, mpInt8, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, mpInt16), uint16(n))
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, mpInt32), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, mpInt64), uint64(n))
}

func appendStrHeader(dst []byte, n int) []byte {
	switch {
	case n <= 31:
		return append(dst, mpFixStr|byte(n))
	case n <= math.MaxUint8:
		return append(dst, mpStr8, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, mpStr16), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, mpStr32), uint32(n))
}

// appendNumberText appends a number as an extension.
func appendNumberText(dst, text []byte) []byte {
	switch n := len(text); {
	case n == 1:
		dst = append(dst, mpFixExt1)
	case n == 2:
		dst = append(dst, mpFixExt2)
	case n == 4:
		dst = append(dst, mpFixExt4)
	case n == 8:
		dst = append(dst, mpFixExt8)
	case n == 16:
		dst = append(dst, mpFixExt16)
	case n <= math.MaxUint8:
		dst = append(dst, mpExt8, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, mpExt16), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, mpExt32), uint32(n))
	}
	return append(append(dst, extNumber), text...)
}

// shortestFloat is the length from which a number may be stored as float64:
// below, its text is as short.
const shortestFloat = 7

// appendNumber appends a JSON number, which must be valid, in the form that
// the package comment promises.
func appendNumber(dst, text []byte) []byte {
	integer := true
	for _, c := range text {
		if c == '.' || c == 'e' || c == 'E' {
			integer = false
			break
		}
	}
	if integer {
		if n, ok := parseUint(text); ok {
			return appendUint(dst, n)
		}
		if text[0] == '-' && text[1] != '0' {
			// Of n up to 2^63, int64(-n) is exact also for the smallest.
			if n, ok := parseUint(text[1:]); ok && n <= 1<<63 {
				return appendInt(dst, int64(-n))
			}
		}
		return appendNumberText(dst, text)
	}
	if len(text) >= shortestFloat && len(text) <= maxFloatText {
		if f, err := strconv.ParseFloat(string(text), 64); err == nil {
			var buf [maxFloatText + 8]byte
			if string(appendFloat(buf[:0], f)) == string(text) {
				return binary.BigEndian.AppendUint64(append(dst, mpFloat64), math.Float64bits(f))
			}
		}
	}
	return appendNumberText(dst, text)
}

// parseUint reads digits; ok is false if there is any other character or the
// number does not fit.
func parseUint(text []byte) (n uint64, ok bool) {
	if len(text) > 20 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		d := uint64(c - '0')
		if n > (math.MaxUint64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// maxFloatText is the longest text that appendFloat writes: sign, 0.000000 and
// 17 digits, or 22 digits with .0.
const maxFloatText = 26

// appendFloat appends the text for which a stored float64 stands: the shortest
// digits that read back as f, plain with at least one digit after the point
// where 1e-6 <= |f| < 1e21 or f is zero, else as 1.5e-7 or 1e21. Changing this
// changes stored bodies.
func appendFloat(dst []byte, f float64) []byte {
	abs := math.Abs(f)
	if abs == 0 || abs >= 1e-6 && abs < 1e21 {
		start := len(dst)
		dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
		for _, c := range dst[start:] {
			if c == '.' {
				return dst
			}
		}
		return append(dst, '.', '0')
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// strconv writes e+21 and e-07.
	out := start
	for i := start; i < len(dst); i++ {
		c := dst[i]
		if c == '+' || c == '0' && dst[i-1] == '-' && i-1 > start {
			continue
		}
		dst[out] = c
		out++
	}
	return dst[:out]
}
