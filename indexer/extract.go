package indexer

import (
	"bytes"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// node says which members of an object are wanted: a leaf holds the number of
// a field, any other node the members below it.
type node struct {
	members map[string]*node
	field   int // -1: not a leaf
}

func (n *node) add(path []string, field int) {
	for _, name := range path {
		if n.members == nil {
			n.members = map[string]*node{}
		}
		next := n.members[name]
		if next == nil {
			next = &node{field: -1}
			n.members[name] = next
		}
		n = next
	}
	n.field = field
}

// extractor reads bodies; it is not safe for use by several goroutines.
type extractor struct {
	dec     *jsontext.Decoder
	buf     bytes.Buffer
	scratch []byte
	ix      *Index
	out     []Value
	wrong   int
}

// maxPooled is the largest buffer that is kept for the next body: a few bodies
// of megabytes must not hold memory for ever.
const maxPooled = 1 << 20

// Bodies were checked when they were put: looking for duplicate names again
// would only cost time.
var extractors = sync.Pool{New: func() any {
	return &extractor{dec: jsontext.NewDecoder(bytes.NewReader(nil), jsontext.AllowDuplicateNames(true))}
}}

// Extract reads the fields of one column from the JSON of a cell into their
// places in out, which has a Value per field of the index; the other places
// are left alone. It returns how many fields were of the wrong type and are
// therefore null. A body that is not an object has none of the fields, and
// each counts as wrong.
func (ix *Index) Extract(column int, body []byte, out []Value) (mismatches int) {
	fields := out[ix.from[column]:ix.from[column+1]]
	for i := range fields {
		fields[i] = Value{}
	}
	e := extractors.Get().(*extractor)
	defer func() {
		if e.buf.Cap() <= maxPooled {
			extractors.Put(e)
		}
	}()
	e.buf.Reset()
	e.buf.Write(body)
	e.dec.Reset(&e.buf, jsontext.AllowDuplicateNames(true))
	e.ix, e.out, e.wrong = ix, out, 0
	if e.dec.PeekKind() != '{' || e.object(ix.extract[column]) != nil {
		for i := range fields {
			fields[i] = Value{}
		}
		return len(fields)
	}
	return e.wrong
}

// object reads the object that comes next.
func (e *extractor) object(n *node) error {
	if _, err := e.dec.ReadToken(); err != nil {
		return err
	}
	for e.dec.PeekKind() != '}' {
		name, err := e.dec.ReadValue()
		if err != nil {
			return err
		}
		next := n.members[string(e.unquote(name))]
		switch {
		case next == nil:
			err = e.dec.SkipValue()
		case next.field >= 0:
			err = e.leaf(next.field)
		case e.dec.PeekKind() == '{':
			err = e.object(next)
		default:
			err = e.dec.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	_, err := e.dec.ReadToken()
	return err
}

// leaf reads the value that comes next into a field.
func (e *extractor) leaf(field int) error {
	raw, err := e.dec.ReadValue()
	if err != nil {
		return err
	}
	v, ok := e.value(e.ix.fields[field].Type, raw)
	if !ok {
		e.wrong++
	}
	e.out[field] = v
	return nil
}

// value converts a JSON value; ok is false if it is not of the type.
func (e *extractor) value(t Type, raw jsontext.Value) (v Value, ok bool) {
	switch raw.Kind() {
	case 'n':
		return Value{}, true
	case 't', 'f':
		if t == Bool {
			return BoolValue(raw.Kind() == 't'), true
		}
	case '0':
		if t == Int64 || t == Decimal || t == Float64 {
			v, err := Parse(t, string(raw))
			return v, err == nil
		}
	case '"':
		if t == UUID || t == String || t == DateTime || t == Decimal {
			v, err := Parse(t, string(e.unquote(raw)))
			return v, err == nil
		}
	}
	return Value{}, false
}

// unquote returns the string of a JSON string; valid until the next call.
func (e *extractor) unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	e.scratch, _ = jsontext.AppendUnquote(e.scratch[:0], raw) // raw was read by a decoder: it cannot fail
	return e.scratch
}
