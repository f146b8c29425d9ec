package body

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/zlib"
)

// maxPooled is the largest buffer that a pool keeps, in bytes.
const maxPooled = 1 << 20

var encoders = sync.Pool{New: func() any {
	e := &encoder{}
	e.dec = jsontext.NewDecoder(&e.in)
	// BestSpeed: on a trip of 600 bytes the default level saves just a fifth,
	// costs 3 us more to write and, worse, 3 us at every read.
	e.zw, _ = zlib.NewWriterLevel(&e.zipped, zlib.BestSpeed) // the level is legal
	return e
}}

// encoder holds what one Encode needs. It is used by one goroutine at a time.
type encoder struct {
	in      bytes.Buffer
	dec     *jsontext.Decoder
	stack   []openContainer
	long    []longContainer
	payload []byte
	zipped  bytes.Buffer
	zw      *zlib.Writer
}

// openContainer is an object or array whose end was not read yet.
type openContainer struct {
	pos    int // of its header byte in the payload
	items  int // keys and values, or elements
	object bool
}

// longContainer is one whose count does not fit its header byte.
type longContainer struct {
	pos    int
	count  int
	object bool
}

func (e *encoder) release() {
	if cap(e.payload) > maxPooled || e.zipped.Cap() > maxPooled || e.in.Len() > maxPooled || cap(e.long) > 1<<12 {
		return
	}
	e.in = bytes.Buffer{} // it aliases the caller's text
	encoders.Put(e)
}

// encode checks json and writes its MessagePack to e.payload.
func (e *encoder) encode(json []byte, limits Limits) error {
	if len(json) > limits.Bytes {
		return newError(CodeTooLarge, -1, "the body has %d bytes, the limit is %d", len(json), limits.Bytes)
	}
	if !utf8.Valid(json) {
		return newError(CodeInvalidUTF8, invalidUTF8(json), "the body is not UTF-8")
	}
	e.stack, e.long, e.payload = e.stack[:0], e.long[:0], e.payload[:0]
	e.in = *bytes.NewBuffer(json)
	e.dec.Reset(&e.in)
	if err := e.tokens(limits.Depth); err != nil {
		return err
	}
	e.lengthenHeaders()
	return nil
}

// tokens reads one value and the end of the text.
func (e *encoder) tokens(maxDepth int) error {
	if e.dec.PeekKind() == 0 {
		if _, err := e.dec.ReadToken(); errors.Is(err, io.EOF) {
			return newError(CodeEmpty, -1, "the body is empty; a cell needs a JSON value")
		} else if err != nil {
			return syntaxError(err)
		}
	}
	for {
		switch kind := e.dec.PeekKind(); kind {
		case '{', '[':
			if len(e.stack) >= maxDepth {
				err := newError(CodeTooDeep, int(e.dec.InputOffset()), "objects and arrays nest deeper than %d", maxDepth)
				err.Pointer = cutPointer(string(e.dec.StackPointer()))
				return err
			}
			if _, err := e.dec.ReadToken(); err != nil {
				return syntaxError(err)
			}
			e.count()
			e.stack = append(e.stack, openContainer{pos: len(e.payload), object: kind == '{'})
			e.payload = append(e.payload, 0)
			continue
		case '}', ']':
			if _, err := e.dec.ReadToken(); err != nil {
				return syntaxError(err)
			}
			e.close()
		case '"', '0':
			text, err := e.dec.ReadValue()
			if err != nil {
				return syntaxError(err)
			}
			e.count()
			if kind == '0' {
				e.payload = appendNumber(e.payload, text)
			} else {
				e.string(text)
			}
		default:
			if _, err := e.dec.ReadToken(); err != nil {
				return syntaxError(err)
			}
			e.count()
			switch kind {
			case 'n':
				e.payload = append(e.payload, mpNil)
			case 'f':
				e.payload = append(e.payload, mpFalse)
			case 't':
				e.payload = append(e.payload, mpTrue)
			}
		}
		if len(e.stack) == 0 {
			break
		}
	}
	at := e.dec.InputOffset()
	switch _, err := e.dec.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return syntaxError(err)
	}
	return newError(CodeInvalidJSON, int(at), "something follows the JSON value")
}

func (e *encoder) count() {
	if n := len(e.stack); n > 0 {
		e.stack[n-1].items++
	}
}

// close writes the count of the innermost container into its header byte, or
// notes that it needs a longer header.
func (e *encoder) close() {
	c := e.stack[len(e.stack)-1]
	e.stack = e.stack[:len(e.stack)-1]
	n, fix := c.items, byte(mpFixArray)
	if c.object {
		n, fix = c.items/2, mpFixMap
	}
	if n <= 15 {
		e.payload[c.pos] = fix | byte(n)
		return
	}
	e.long = append(e.long, longContainer{pos: c.pos, count: n, object: c.object})
}

// lengthenHeaders makes room for the headers that need three or five bytes,
// moving every byte at most once.
func (e *encoder) lengthenHeaders() {
	if len(e.long) == 0 {
		return
	}
	slices.SortFunc(e.long, func(a, b longContainer) int { return cmp.Compare(a.pos, b.pos) })
	extra := 0
	for _, c := range e.long {
		extra += c.extra()
	}
	end := len(e.payload) // of the bytes not moved yet
	e.payload = slices.Grow(e.payload, extra)[:end+extra]
	for i := len(e.long) - 1; i >= 0; i-- {
		c := e.long[i]
		copy(e.payload[c.pos+1+extra:], e.payload[c.pos+1:end])
		end = c.pos
		extra -= c.extra()
		header := e.payload[c.pos+extra:]
		if c.extra() == 2 {
			header[0] = mpArray16
			if c.object {
				header[0] = mpMap16
			}
			binary.BigEndian.PutUint16(header[1:], uint16(c.count))
		} else {
			header[0] = mpArray32
			if c.object {
				header[0] = mpMap32
			}
			binary.BigEndian.PutUint32(header[1:], uint32(c.count))
		}
	}
}

// extra is how many bytes the header is longer than one.
func (c longContainer) extra() int {
	if c.count <= math.MaxUint16 {
		return 2
	}
	return 4
}

// string writes a quoted JSON string, which the decoder has checked.
func (e *encoder) string(quoted []byte) {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		e.payload = append(appendStrHeader(e.payload, len(inner)), inner...)
		return
	}
	// Unquote behind the place of the longest header, then close the gap.
	const room = 5
	start := len(e.payload)
	e.payload = append(e.payload, make([]byte, room)...)
	e.payload, _ = jsontext.AppendUnquote(e.payload, quoted) // checked before
	n := len(e.payload) - start - room
	header := appendStrHeader(e.payload[start:start], n)
	copy(e.payload[start+len(header):], e.payload[start+room:])
	e.payload = e.payload[:start+len(header)+n]
}

// seal appends the stored form of e.payload to dst.
func (e *encoder) seal(dst []byte) ([]byte, error) {
	e.zipped.Reset()
	e.zw.Reset(&e.zipped)
	_, err := e.zw.Write(e.payload)
	if err == nil {
		err = e.zw.Close()
	}
	if err != nil {
		return dst, newError(CodeInvalidJSON, -1, "zlib: %v", err) // a buffer takes every write
	}
	if z := e.zipped.Bytes(); len(z)*5 <= len(e.payload)*4 {
		return seal(dst, formatZlib, z), nil
	}
	return seal(dst, formatPlain, e.payload), nil
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8.
func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(b)
}
