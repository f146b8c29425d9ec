package body

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"sync"
)

// The canonical form of a body is its JSON text without white space, strings
// in their shortest escaping (\" \\ \b \f \n \r \t, \u00xx in lower case for
// other control characters, all else as itself), numbers as
// appendCanonicalNumber writes them, arrays in order, and each object's
// members in the order of the bytes of their quoted keys. Two bodies are the
// same if and only if their canonical forms are the same bytes. It is a
// promise: ETags and hashes that others keep depend on it.

// Equal says whether two stored bodies are the same JSON value: strings by
// code point, numbers as exact decimals (1 = 1.0 = 10e-1, -0 = 0), arrays in
// order, objects whatever the order of their keys. The error is an *Error if
// one of them cannot be read.
func Equal(a, b []byte) (bool, error) {
	ca := canonicals.Get().(*canonical)
	defer ca.release()
	cb := canonicals.Get().(*canonical)
	defer cb.release()
	if err := ca.read(a); err != nil {
		return false, err
	}
	if err := cb.read(b); err != nil {
		return false, err
	}
	if bytes.Equal(ca.text, cb.text) {
		return true, nil
	}
	return bytes.Equal(ca.form(), cb.form()), nil
}

// Hash returns the SHA-256 of a stored body's canonical form; in hex it is the
// body's ETag. The error is an *Error if the body cannot be read.
func Hash(stored []byte) ([32]byte, error) {
	c := canonicals.Get().(*canonical)
	defer c.release()
	if err := c.read(stored); err != nil {
		return [32]byte{}, err
	}
	return sha256.Sum256(c.form()), nil
}

// HashJSON is Hash for one who has the JSON text already. json must be what
// AppendJSON returned; the hash of any other spelling is meaningless.
func HashJSON(json []byte) [32]byte {
	c := canonicals.Get().(*canonical)
	defer c.release()
	c.text = append(c.text[:0], json...)
	return sha256.Sum256(c.form())
}

// canonical makes the canonical form of a text that AppendJSON wrote. It is
// used by one goroutine at a time.
type canonical struct {
	text    []byte
	spans   []span   // of text's containers, in the order of their beginnings
	members []member // of the objects that are being written
	open    []int    // scratch of findSpans
	out     []byte
}

// span says where a container ends, and which is the first one after it.
type span struct{ end, next int }

// member is a key and value in text.
type member struct {
	key   []byte
	value int // offset of the value
	span  int // the first span at or after the value
}

var canonicals = sync.Pool{New: func() any { return new(canonical) }}

func (c *canonical) release() {
	if cap(c.text) > maxPooled || cap(c.spans) > maxPooled/16 || cap(c.members) > maxPooled/32 || cap(c.out) > maxPooled {
		return
	}
	clear(c.members[:cap(c.members)])
	canonicals.Put(c)
}

func (c *canonical) read(stored []byte) (err error) {
	c.text, err = AppendJSON(c.text[:0], stored, MaxBytes)
	return err
}

func (c *canonical) form() []byte {
	c.findSpans()
	c.members, c.out = c.members[:0], c.out[:0]
	c.value(0, 0)
	return c.out
}

// findSpans notes each container, so that an object's values can be written in
// another order than they are read without reading anything twice.
func (c *canonical) findSpans() {
	c.spans, c.open = c.spans[:0], c.open[:0]
	for i := 0; i < len(c.text); i++ {
		switch c.text[i] {
		case '"':
			i = stringEnd(c.text, i) - 1
		case '{', '[':
			c.open = append(c.open, len(c.spans))
			c.spans = append(c.spans, span{})
		case '}', ']':
			n := len(c.open) - 1
			c.spans[c.open[n]] = span{end: i + 1, next: len(c.spans)}
			c.open = c.open[:n]
		}
	}
}

// value writes the value at pos, where s is the first span at or after it. It
// recurses at most MaxDepth deep.
func (c *canonical) value(pos, s int) {
	switch ch := c.text[pos]; {
	case ch == '{':
		c.object(pos, s)
	case ch == '[':
		c.out = append(c.out, '[')
		next := s + 1
		for pos++; c.text[pos] != ']'; {
			if c.text[pos] == ',' {
				c.out = append(c.out, ',')
				pos++
			}
			c.value(pos, next)
			pos, next = c.skip(pos, next)
		}
		c.out = append(c.out, ']')
	case ch == '-' || ch >= '0' && ch <= '9':
		end, _ := c.skip(pos, s)
		c.out = appendCanonicalNumber(c.out, c.text[pos:end])
	default:
		end, _ := c.skip(pos, s)
		c.out = append(c.out, c.text[pos:end]...)
	}
}

func (c *canonical) object(pos, s int) {
	first := len(c.members)
	next := s + 1
	for pos++; c.text[pos] != '}'; {
		if c.text[pos] == ',' {
			pos++
		}
		key := c.text[pos:stringEnd(c.text, pos)]
		pos += len(key) + 1
		c.members = append(c.members, member{key: key, value: pos, span: next})
		pos, next = c.skip(pos, next)
	}
	byKey := func(a, b member) int { return bytes.Compare(a.key, b.key) }
	if m := c.members[first:]; !slices.IsSortedFunc(m, byKey) {
		slices.SortFunc(m, byKey)
	}
	c.out = append(c.out, '{')
	for i := first; i < len(c.members); i++ {
		if i > first {
			c.out = append(c.out, ',')
		}
		m := c.members[i]
		c.out = append(append(c.out, m.key...), ':')
		c.value(m.value, m.span)
	}
	c.out = append(c.out, '}')
	c.members = c.members[:first]
}

// skip returns the end of the value at pos, and the first span after it.
func (c *canonical) skip(pos, s int) (end, next int) {
	switch c.text[pos] {
	case '{', '[':
		return c.spans[s].end, c.spans[s].next
	case '"':
		return stringEnd(c.text, pos), s
	}
	for pos < len(c.text) && c.text[pos] != ',' && c.text[pos] != ']' && c.text[pos] != '}' {
		pos++
	}
	return pos, s
}

// stringEnd returns the offset behind the string that begins at pos.
func stringEnd(text []byte, pos int) int {
	for pos++; text[pos] != '"'; pos++ {
		if text[pos] == '\\' {
			pos++
		}
	}
	return pos + 1
}
