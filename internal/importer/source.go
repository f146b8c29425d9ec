package importer

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/cellog/cellog"
)

// maxLine bounds a line of a JSONL file.
const maxLine = 64 << 20

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
	fields  []string
	at      map[string]int
	convert []func([]byte, string) ([]byte, error)
	isText  []bool
	m       Mapping
}

// NewCSV reads a CSV file (RFC 4180, comma) whose first row names the fields.
// The body of a cell is an object of them, in the file's order.
func NewCSV(r io.Reader, m Mapping) (Source, error) {
	c := csv.NewReader(r)
	c.ReuseRecord = true
	head, err := c.Read()
	if err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	s := &csvSource{r: c, at: map[string]int{}}
	for i, f := range head {
		if i == 0 && len(f) > 3 && f[:3] == "\xef\xbb\xbf" {
			f = f[3:] // a byte order mark
		}
		if _, twice := s.at[f]; twice {
			return nil, fmt.Errorf("the header: field %q is there twice", f)
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
	rec, err := s.r.Read()
	var pe *csv.ParseError
	switch {
	case errors.As(err, &pe):
		return cellog.Put{}, pe.StartLine, &RowError{pe.StartLine, pe.Err}
	case err != nil:
		return cellog.Put{}, 0, err
	}
	line, _ := s.r.FieldPos(0)
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

type jsonSource struct {
	s    *bufio.Scanner
	m    Mapping
	line int
}

// NewJSONL reads a file with one JSON object a line; the line is the body of
// the cell, as it is. Empty lines are skipped. Types must be empty.
func NewJSONL(r io.Reader, m Mapping) (Source, error) {
	if len(m.Types) > 0 {
		return nil, errors.New("types: a JSONL file has types of its own")
	}
	m, err := m.check(nil)
	if err != nil {
		return nil, err
	}
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	return &jsonSource{s: s, m: m}, nil
}

func (s *jsonSource) Next() (cellog.Put, int, error) {
	for s.s.Scan() {
		s.line++
		text := s.s.Bytes()
		if len(text) == 0 {
			continue
		}
		fail := func(err error) (cellog.Put, int, error) { return cellog.Put{}, s.line, &RowError{s.line, err} }
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
				return "", fmt.Errorf("there is no field %q", f)
			}
			var str string
			if raw[0] == '"' {
				if err := json.Unmarshal(raw, &str); err != nil {
					return "", err
				}
				return str, nil
			}
			return string(raw), nil
		})
		if err != nil {
			return fail(err)
		}
		return cellog.Put{Key: key, Body: append([]byte(nil), text...)}, s.line, nil
	}
	if err := s.s.Err(); err != nil {
		return cellog.Put{}, s.line + 1, fmt.Errorf("line %d: %w", s.line+1, err)
	}
	return cellog.Put{}, 0, io.EOF
}
