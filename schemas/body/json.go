package body

import (
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf8"
)

// level is a container that is being read.
type level struct {
	left   int // items to come: keys and values, or elements
	object bool
	begun  bool
}

// appendPayload checks a payload and appends its JSON text to dst, at most max
// bytes. Each declared length is held against the bytes that are left, each
// string must be UTF-8, each extension a number; so no input makes it write
// anything but JSON, or more than a few times its own length. dst's own bytes
// are never changed.
func appendPayload(dst, p []byte, max int) ([]byte, error) {
	var few [32]level
	outer := few[:0]
	cur := level{left: 1}
	start := len(dst)
	pos := 0
	for {
		for cur.left == 0 {
			if len(outer) == 0 {
				if pos != len(p) {
					return dst, corrupt(pos, "bytes follow the value")
				}
				if len(dst)-start > max {
					return dst, newError(CodeTooLarge, -1, "the stored body's JSON text is longer than %d bytes", max)
				}
				return dst, nil
			}
			if cur.object {
				dst = append(dst, '}')
			} else {
				dst = append(dst, ']')
			}
			cur = outer[len(outer)-1]
			outer = outer[:len(outer)-1]
		}
		if len(dst)-start > max {
			return dst, newError(CodeTooLarge, -1, "the stored body's JSON text is longer than %d bytes", max)
		}
		if pos >= len(p) {
			return dst, corrupt(pos, "the value ends too early")
		}
		c := p[pos]
		key := cur.object && cur.left&1 == 0
		switch {
		case cur.object && !key:
			dst = append(dst, ':')
		case cur.begun:
			dst = append(dst, ',')
		}
		cur.begun = true
		cur.left--

		// Strings first: every second value is a key.
		if n, size, ok := stringHeader(p, pos, c); ok {
			pos += size
			if n > len(p)-pos || n < 0 {
				return dst, corrupt(pos, "a string is longer than what is left")
			}
			var fine bool
			if dst, fine = appendString(dst, p[pos:pos+n]); !fine {
				return dst, corrupt(pos, "a string is not UTF-8")
			}
			pos += n
			continue
		}
		if key {
			return dst, corrupt(pos, "an object's key is not a string")
		}
		switch {
		case c <= 0x7f:
			dst = strconv.AppendUint(dst, uint64(c), 10)
			pos++
			continue
		case c >= mpNegInt:
			dst = strconv.AppendInt(dst, int64(int8(c)), 10)
			pos++
			continue
		}
		if n, size, object, ok := containerHeader(p, pos, c); ok {
			pos += size
			items := n
			if object {
				items = 2 * n
			}
			if n < 0 || items > len(p)-pos {
				return dst, corrupt(pos, "a container has more items than bytes are left")
			}
			if len(outer) >= MaxDepth {
				return dst, corrupt(pos, "containers nest too deep")
			}
			outer = append(outer, cur)
			cur = level{left: items, object: object}
			if object {
				dst = append(dst, '{')
			} else {
				dst = append(dst, '[')
			}
			continue
		}
		out, size, err := appendScalar(dst, p, pos)
		if err != nil {
			return dst, err
		}
		dst = out
		pos += size
	}
}

// stringHeader returns the length of a string and of its header; n is -1 if
// the header is cut off.
func stringHeader(p []byte, pos int, c byte) (n, size int, ok bool) {
	switch {
	case c&0xe0 == mpFixStr:
		return int(c & 0x1f), 1, true
	case c < mpStr8 || c > mpStr32:
		return 0, 0, false
	}
	width := 1 << (c - mpStr8)
	return bigEndian(p[pos+1:], width), 1 + width, true
}

// containerHeader returns the number of elements or of members, and the length
// of the header; n is -1 if the header is cut off.
func containerHeader(p []byte, pos int, c byte) (n, size int, object, ok bool) {
	switch {
	case c&0xf0 == mpFixMap:
		return int(c & 0x0f), 1, true, true
	case c&0xf0 == mpFixArray:
		return int(c & 0x0f), 1, false, true
	case c < mpArray16 || c > mpMap32:
		return 0, 0, false, false
	}
	object = c >= mpMap16
	width := 2
	if c == mpArray32 || c == mpMap32 {
		width = 4
	}
	return bigEndian(p[pos+1:], width), 1 + width, object, true
}

// bigEndian reads an unsigned number of 1, 2 or 4 bytes, or returns -1 if b is
// too short.
func bigEndian(b []byte, width int) int {
	if len(b) < width {
		return -1
	}
	switch width {
	case 1:
		return int(b[0])
	case 2:
		return int(binary.BigEndian.Uint16(b))
	}
	return int(binary.BigEndian.Uint32(b))
}

// appendScalar reads what is neither a string, a container nor a small
// integer, and returns its length too.
func appendScalar(dst, p []byte, pos int) ([]byte, int, error) {
	c := p[pos]
	rest := p[pos+1:]
	switch c {
	case mpNil:
		return append(dst, "null"...), 1, nil
	case mpFalse:
		return append(dst, "false"...), 1, nil
	case mpTrue:
		return append(dst, "true"...), 1, nil
	case mpExt8, mpExt16, mpExt32:
		width := 1 << (c - mpExt8)
		out, n, err := appendExt(dst, rest, width, bigEndian(rest, width), pos)
		return out, 1 + width + 1 + n, err
	case mpFixExt1, mpFixExt2, mpFixExt4, mpFixExt8, mpFixExt16:
		out, n, err := appendExt(dst, rest, 0, 1<<(c-mpFixExt1), pos)
		return out, 2 + n, err
	case mpUint8, mpUint16, mpUint32, mpUint64, mpInt8, mpInt16, mpInt32, mpInt64, mpFloat64:
	default:
		return dst, 0, corrupt(pos, "a byte begins no value that bodies may hold")
	}
	size := 8
	if c != mpFloat64 {
		size = 1 << ((c - mpUint8) & 3)
	}
	if len(rest) < size {
		return dst, 0, corrupt(pos, "a number is cut off")
	}
	var n uint64
	for _, b := range rest[:size] {
		n = n<<8 | uint64(b)
	}
	switch c {
	case mpUint8, mpUint16, mpUint32, mpUint64:
		dst = strconv.AppendUint(dst, n, 10)
	case mpFloat64:
		f := math.Float64frombits(n)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return dst, 0, corrupt(pos, "a float64 is not a number of JSON")
		}
		dst = appendFloat(dst, f)
	default:
		unused := 64 - 8*size
		dst = strconv.AppendInt(dst, int64(n<<unused)>>unused, 10)
	}
	return dst, 1 + size, nil
}

// appendExt reads an extension's type and n bytes behind its length.
func appendExt(dst, rest []byte, width, n, pos int) ([]byte, int, error) {
	if n < 0 || n > len(rest)-width-1 {
		return dst, 0, corrupt(pos, "an extension is longer than what is left")
	}
	if rest[width] != extNumber {
		return dst, 0, corrupt(pos, "an extension of an unknown type")
	}
	text := rest[width+1 : width+1+n]
	if !isNumber(text) {
		return dst, 0, corrupt(pos, "an extension does not hold a number")
	}
	return append(dst, text...), n, nil
}

// plain has the bytes that stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for c := 0x20; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// appendString appends s as a JSON string in its shortest escaping; ok is
// false if s is not UTF-8.
func appendString(dst, s []byte) (_ []byte, ok bool) {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	begin := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRune(s[i:])
			if r == utf8.RuneError && n <= 1 {
				return dst, false
			}
			i += n
			continue
		}
		dst = append(dst, s[begin:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		begin = i
	}
	dst = append(dst, s[begin:]...)
	return append(dst, '"'), true
}
