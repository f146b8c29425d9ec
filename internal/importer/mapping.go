package importer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// LineField is a field that every row has: the number of its first line.
const LineField = "_line"

// Mapping says how a row becomes a put.
type Mapping struct {
	// Column is the cells' column. Required.
	Column string
	// RowKey is the field that holds the row key. Either it or UUID5 is
	// required.
	RowKey string
	// UUID5 makes the row key a UUID version 5 (SHA-1) of these fields' texts,
	// joined by the unit separator (U+001F). "*" stands for all fields.
	UUID5 []string
	// Namespace is that UUID's namespace. Default the URL namespace.
	Namespace uuid.UUID
	// RefKey is a field, or an integer that all cells get. Default 0.
	RefKey string
	// Types gives CSV fields a JSON type: string (the default), int64,
	// decimal, bool, json, or skip, which leaves the field out of the body. An
	// empty field is null unless it is a string.
	Types map[string]string
}

var decimal = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// types converts a field's text to JSON, by the name of the type.
var types = map[string]func(dst []byte, text string) ([]byte, error){
	"string": func(dst []byte, s string) ([]byte, error) {
		if !utf8.ValidString(s) {
			return nil, fmt.Errorf("not UTF-8")
		}
		return appendString(dst, s), nil
	},
	"int64": func(dst []byte, s string) ([]byte, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%.40q is not an int64", s)
		}
		return strconv.AppendInt(dst, n, 10), nil
	},
	"decimal": func(dst []byte, s string) ([]byte, error) {
		if !decimal.MatchString(s) {
			return nil, fmt.Errorf("%.40q is not a decimal number", s)
		}
		return append(dst, s...), nil
	},
	"bool": func(dst []byte, s string) ([]byte, error) {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return nil, fmt.Errorf("%.40q is not true or false", s)
		}
		return strconv.AppendBool(dst, b), nil
	},
	"json": func(dst []byte, s string) ([]byte, error) {
		if !json.Valid([]byte(s)) {
			return nil, fmt.Errorf("not JSON")
		}
		return append(dst, s...), nil
	},
	"skip": nil,
}

func appendString(dst []byte, s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string always encodes
	}
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

// check completes the mapping and checks it against the fields that there
// are; nil fields are not known.
func (m Mapping) check(fields []string) (Mapping, error) {
	known := func(what, name string) error {
		if fields == nil || name == LineField {
			return nil
		}
		for _, f := range fields {
			if f == name {
				return nil
			}
		}
		hint := ""
		if len(fields) == 1 && strings.ContainsAny(fields[0], ";\t|") {
			hint = ": is another character than the comma between the fields?"
		}
		return fmt.Errorf("%s: there is no field %q; there are %s%s", what, name, quoted(fields), hint)
	}
	if err := cellog.CheckColumn(m.Column); err != nil {
		return m, err
	}
	if (m.RowKey == "") == (len(m.UUID5) == 0) {
		return m, fmt.Errorf("row key: want either a field that holds it or the fields to make it of")
	}
	if m.RowKey != "" {
		if err := known("row key", m.RowKey); err != nil {
			return m, err
		}
	}
	var all []string
	for _, f := range m.UUID5 {
		if f == "*" {
			if fields == nil {
				return m, fmt.Errorf("row key: * needs a file whose fields are known from its header")
			}
			all = append(all, fields...)
			continue
		}
		if err := known("row key", f); err != nil {
			return m, err
		}
		all = append(all, f)
	}
	m.UUID5 = all
	if m.Namespace == uuid.Nil {
		m.Namespace = uuid.NameSpaceURL
	}
	if m.RefKey == "" {
		m.RefKey = "0"
	}
	if _, err := cellog.ParseRefKey(m.RefKey); err != nil {
		if err := known("ref key", m.RefKey); err != nil {
			return m, err
		}
	}
	for f, t := range m.Types {
		if _, ok := types[t]; !ok {
			return m, fmt.Errorf("type of %q: %q: want string, int64, decimal, bool, json or skip", f, t)
		}
		if err := known("type", f); err != nil {
			return m, err
		}
	}
	return m, nil
}

// quoted lists names for a message, the first ones if there are many.
func quoted(names []string) string {
	const most = 30
	var out []string
	for _, n := range names[:min(len(names), most)] {
		out = append(out, fmt.Sprintf("%.80q", n))
	}
	if len(names) > most {
		out = append(out, "…")
	}
	return strings.Join(out, ", ")
}

// key makes a row's key; text gives a field's text.
func (m *Mapping) key(text func(field string) (string, error)) (cellog.Key, error) {
	k := cellog.Key{Column: m.Column}
	if m.RowKey != "" {
		s, err := text(m.RowKey)
		if err == nil {
			k.Row, err = cellog.ParseRowKey(s)
		}
		if err != nil {
			return k, fmt.Errorf("field %q: %w", m.RowKey, err)
		}
	} else {
		parts := make([]string, len(m.UUID5))
		for i, f := range m.UUID5 {
			var err error
			if parts[i], err = text(f); err != nil {
				return k, fmt.Errorf("field %q: %w", f, err)
			}
		}
		k.Row = uuid.NewSHA1(m.Namespace, []byte(strings.Join(parts, "\x1f")))
	}
	ref := m.RefKey
	n, err := cellog.ParseRefKey(ref)
	if err != nil {
		s, err := text(ref)
		if err == nil {
			n, err = cellog.ParseRefKey(s)
		}
		if err != nil {
			return k, fmt.Errorf("field %q: %w", ref, err)
		}
	}
	k.Ref = n
	return k, nil
}
