package body

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// checkPayload returns the error that appendPayload would, but for a text that
// is too long, without writing the text.
func checkPayload(p []byte) error {
	var few [32]level
	outer := few[:0]
	cur := level{left: 1}
	var buf [64]byte
	pos := 0
	for {
		for cur.left == 0 {
			if len(outer) == 0 {
				if pos != len(p) {
					return corrupt(pos, "bytes follow the value")
				}
				return nil
			}
			cur = outer[len(outer)-1]
			outer = outer[:len(outer)-1]
		}
		if pos >= len(p) {
			return corrupt(pos, "the value ends too early")
		}
		c := p[pos]
		key := cur.object && cur.left&1 == 0
		cur.left--
		if n, size, ok := stringHeader(p, pos, c); ok {
			pos += size
			if n > len(p)-pos || n < 0 {
				return corrupt(pos, "a string is longer than what is left")
			}
			if !utf8.Valid(p[pos : pos+n]) {
				return corrupt(pos, "a string is not UTF-8")
			}
			pos += n
			continue
		}
		if key {
			return corrupt(pos, "an object's key is not a string")
		}
		if c <= 0x7f || c >= mpNegInt {
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
				return corrupt(pos, "a container has more items than bytes are left")
			}
			if len(outer) >= MaxDepth {
				return corrupt(pos, "containers nest too deep")
			}
			outer = append(outer, cur)
			cur = level{left: items, object: object}
			continue
		}
		if c == mpFloat64 && len(p)-pos > 8 { // its text would be most of the work
			if f := math.Float64frombits(binary.BigEndian.Uint64(p[pos+1:])); !math.IsNaN(f) && !math.IsInf(f, 0) {
				pos += 9
				continue
			}
		}
		_, size, err := appendScalar(buf[:0], p, pos)
		if err != nil {
			return err
		}
		pos += size
	}
}
