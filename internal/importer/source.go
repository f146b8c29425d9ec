package importer

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/cellog/cellog"
)

// maxRow bounds a row in bytes, give or take a buffer: no body is so large.
const maxRow = 64 << 20

// Source yields the puts of a file, row by row.
type Source interface {
	// Next returns the next row's put and the number of its first line. At
	// the end it returns io.EOF. A *RowError speaks of one row only: the next
	// call goes on behind it. Any other error ends the source.
	Next() (cellog.Put, int, error)
}

// RowError says what is wrong with one row.
type RowError struct {
	Line int
	Err  error
}

// Error returns line and cause.
func (e *RowError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the cause.
func (e *RowError) Unwrap() error { return e.Err }

type csvSource struct {
	r       *csv.Reader
	in      *bounded
	fields  []string
	at      map[string]int
	convert []func([]byte, string) ([]byte, error)
	isText  []bool
	m       Mapping
	line    int // the last one read
}

// NewCSV reads a CSV file (RFC 4180, comma) whose first row names the fields.
// The body of a cell is an object of them, in the file's order.
func NewCSV(r io.Reader, m Mapping) (Source, error) {
	text, err := utf8Text(r)
	if err != nil {
		return nil, err
	}
	in := &bounded{r: text, left: maxRow}
	s := &csvSource{r: csv.NewReader(in), in: in, at: map[string]int{}}
	s.r.ReuseRecord = true
	head, err := s.r.Read()
	var pe *csv.ParseError
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty: its first row must name the fields")
	case errors.As(err, &pe):
		return nil, fmt.Errorf("the header: %w", quoteError(pe))
	case err != nil:
		return nil, fmt.Errorf("the header: %w", err)
	}
	for i, f := range head {
		_, twice := s.at[f]
		switch {
		case !utf8.ValidString(f):
			return nil, fmt.Errorf("the header: the name of field %d, %.40q, is not UTF-8", i+1, f)
		case twice:
			return nil, fmt.Errorf("the header: field %.80q is there twice", f)
		case f == LineField:
			return nil, fmt.Errorf("the header: field %s: this name is taken, it stands for each row's line number", f)
		case f == "" && m.Types[f] != "skip":
			return nil, fmt.Errorf("the header: field %d has no name: name it, or leave it out by the type skip", i+1)
		}
		s.at[f] = i
		s.fields = append(s.fields, f)
	}
	if s.m, err = m.check(s.fields); err != nil {
		return nil, err
	}
	for _, f := range s.fields {
		t := s.m.Types[f]
		if t == "" {
			t = "string"
		}
		s.convert = append(s.convert, types[t])
		s.isText = append(s.isText, t == "string")
	}
	return s, nil
}

func (s *csvSource) Next() (cellog.Put, int, error) {
	s.in.left = maxRow
	rec, err := s.r.Read()
	var pe *csv.ParseError
	switch {
	case errors.As(err, &pe) && errors.Is(pe.Err, csv.ErrFieldCount):
		s.line = pe.Line
		return cellog.Put{}, pe.StartLine, &RowError{pe.StartLine, fmt.Errorf("%d fields, but the header names %d", len(rec), len(s.fields))}
	case errors.As(err, &pe):
		s.line = pe.Line
		return cellog.Put{}, pe.StartLine, &RowError{pe.StartLine, quoteError(pe)}
	case errors.Is(err, io.EOF):
		return cellog.Put{}, 0, err
	case err != nil:
		return cellog.Put{}, 0, fmt.Errorf("behind line %d: %w", max(s.line, 1), err)
	}
	line, _ := s.r.FieldPos(0)
	s.line = line
	fail := func(err error) (cellog.Put, int, error) { return cellog.Put{}, line, &RowError{line, err} }
	key, err := s.m.key(func(f string) (string, error) {
		if f == LineField {
			return strconv.Itoa(line), nil
		}
		return rec[s.at[f]], nil
	})
	if err != nil {
		return fail(err)
	}
	body := []byte{'{'}
	for i, f := range s.fields {
		if s.convert[i] == nil {
			continue
		}
		if len(body) > 1 {
			body = append(body, ',')
		}
		body = append(appendString(body, f), ':')
		if rec[i] == "" && !s.isText[i] {
			body = append(body, "null"...)
			continue
		}
		if body, err = s.convert[i](body, rec[i]); err != nil {
			return fail(fmt.Errorf("field %q: %w", f, err))
		}
	}
	return cellog.Put{Key: key, Body: append(body, '}')}, line, nil
}

// quoteError says what is wrong with a row's quotes, and what went with it: a
// quote that is not closed takes all lines up to the next one, or the end.
func quoteError(pe *csv.ParseError) error {
	text := `a quote (") stands inside a field that is not quoted: quote the field, and write "" for a quote in it`
	if errors.Is(pe.Err, csv.ErrQuote) {
		text = `a quote (") is not closed, or is followed by neither comma nor line end: write "" for a quote in a quoted field`
	}
	if pe.Line > pe.StartLine {
		text += fmt.Sprintf("; all up to line %d was taken for this row, and is not imported", pe.Line)
	}
	return errors.New(text)
}

type jsonSource struct {
	r    *bufio.Reader
	m    Mapping
	line int
	long []byte // a line that the reader's buffer does not hold
}

// NewJSONL reads a file with one JSON object a line; the line is the body of
// the cell, as it is. Blank lines are skipped. Types must be empty.
func NewJSONL(r io.Reader, m Mapping) (Source, error) {
	if len(m.Types) > 0 {
		return nil, errors.New("types: a JSONL file has types of its own")
	}
	m, err := m.check(nil)
	if err != nil {
		return nil, err
	}
	text, err := utf8Text(r)
	if err != nil {
		return nil, err
	}
	return &jsonSource{r: text, m: m}, nil
}

func (s *jsonSource) Next() (cellog.Put, int, error) {
	for {
		text, err := s.read()
		if err != nil {
			return cellog.Put{}, 0, err
		}
		fail := func(err error) (cellog.Put, int, error) { return cellog.Put{}, s.line, &RowError{s.line, err} }
		if text == nil {
			return fail(fmt.Errorf("the line is longer than %d bytes", maxRow))
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		if text[0] != '{' {
			return fail(fmt.Errorf("it is %s: want a JSON object", kind(text)))
		}
		var row map[string]json.RawMessage
		if err := json.Unmarshal(text, &row); err != nil {
			return fail(fmt.Errorf("not a JSON object: %w", err))
		}
		key, err := s.m.key(func(f string) (string, error) {
			if f == LineField {
				return strconv.Itoa(s.line), nil
			}
			raw, ok := row[f]
			if !ok {
				return "", errors.New("it is not there")
			}
			switch raw[0] {
			case '"':
				var str string
				if err := json.Unmarshal(raw, &str); err != nil {
					return "", err
				}
				return str, nil
			case 'n', '{', '[':
				return "", fmt.Errorf("it is %s: want a string or a number", kind(raw))
			}
			return string(raw), nil
		})
		if err != nil {
			return fail(err)
		}
		return cellog.Put{Key: key, Body: bytes.Clone(text)}, s.line, nil
	}
}

// read returns the next line, nil in place of one that is too long, which is
// skipped.
func (s *jsonSource) read() ([]byte, error) {
	s.long = s.long[:0]
	tooLong := false
	for {
		part, err := s.r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if tooLong = tooLong || len(s.long)+len(part) > maxRow; !tooLong {
				s.long = append(s.long, part...)
			}
			continue
		case errors.Is(err, io.EOF) && len(part)+len(s.long) == 0 && !tooLong:
			return nil, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("behind line %d: %w", s.line, err)
		}
		s.line++
		switch {
		case tooLong || len(s.long)+len(part) > maxRow:
			return nil, nil
		case len(s.long) == 0:
			return part, nil
		}
		s.long = append(s.long, part...)
		return s.long, nil
	}
}

// kind names the kind of a JSON value by how it begins.
func kind(raw []byte) string {
	switch c := raw[0]; {
	case c == '{':
		return "an object"
	case c == '[':
		return "an array"
	case c == '"':
		return "a string"
	case c == 'n':
		return "null"
	case c == 't', c == 'f':
		return "a bool"
	case c == '-', c >= '0' && c <= '9':
		return "a number"
	}
	return "not JSON"
}

// utf8Text takes a byte order mark off, and refuses UTF-16, which spreadsheets
// write as "Unicode text".
func utf8Text(r io.Reader) (*bufio.Reader, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, _ := b.Peek(3) // an error comes again with the first read
	switch {
	case bytes.HasPrefix(head, []byte("\xef\xbb\xbf")):
		if _, err := b.Discard(3); err != nil {
			return nil, err
		}
	case bytes.HasPrefix(head, []byte("\xff\xfe")), bytes.HasPrefix(head, []byte("\xfe\xff")):
		return nil, errors.New("the file is UTF-16: want UTF-8, which iconv -f UTF-16 -t UTF-8 makes of it")
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		return nil, errors.New("the file is compressed by gzip: give it a name that ends in .gz, or unpack it")
	}
	return b, nil
}

// bounded ends a row that is too long, before it fills the memory: a quote
// that is not closed takes the whole file for one row.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("a row is longer than %d bytes: is a quote not closed?", maxRow)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
