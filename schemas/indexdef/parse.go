package indexdef

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/cellog/cellog"
)

// Parse reads one definition. file is its name in errors. Every mistake found
// is in the error, as an *Error each.
func Parse(file string, text []byte) (Definition, error) {
	p := &reader{file: file}
	d := p.definition(text)
	if len(p.errs) > 0 {
		return Definition{}, joined(p.errs)
	}
	return d, nil
}

// reader walks one file's syntax tree and collects its mistakes.
type reader struct {
	file string
	errs []*Error
}

func (p *reader) fail(at *token.Position, format string, args ...any) {
	e := &Error{File: p.file, Message: fmt.Sprintf(format, args...)}
	if at != nil {
		e.Line, e.Column = at.Line, at.Column
	}
	p.errs = append(p.errs, e)
}

func (p *reader) definition(text []byte) Definition {
	d := Definition{File: p.file}
	if len(text) > MaxFileBytes {
		p.fail(nil, "the file has %d bytes, the limit is %d", len(text), MaxFileBytes)
		return d
	}
	if !utf8.Valid(text) {
		p.fail(nil, "the file is not UTF-8")
		return d
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) // a byte order mark
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax yaml.Error
		if errors.As(err, &syntax) && syntax.GetToken() != nil {
			p.fail(syntax.GetToken().Position, "not YAML: %s", syntax.GetMessage())
		} else {
			p.fail(nil, "not YAML")
		}
		return d
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body != nil:
			p.fail(place(doc.Body), "a second document: want one definition per file")
			return d
		default:
			body = doc.Body
		}
	}
	if body == nil {
		p.fail(nil, "the file is empty: want table, datastore and column_defs")
		return d
	}
	d.Line = place(body).Line
	values, ok := p.mapping(body, "the definition", "table", "datastore", "column_defs")
	if !ok {
		return d
	}
	if s, at, ok := p.text(values["table"], "table"); ok {
		d.Table = s
		switch {
		case !tableName.MatchString(s):
			p.fail(at, "table %.80q: want a lower-case letter and up to 54 lower-case letters, digits or underscores", s)
		case strings.HasSuffix(s, "_home"):
			p.fail(at, "table %q: a name must not end in _home, which marks the index's second table", s)
		}
	}
	if s, at, ok := p.text(values["datastore"], "datastore"); ok {
		d.Datastore = s
		if err := cellog.CheckDatastore(s); err != nil {
			p.fail(at, "%v", err)
		}
	}
	d.Columns = p.columns(values["column_defs"])
	return d
}

func (p *reader) columns(list ast.Node) []Column {
	items, ok := p.sequence(list, "column_defs", MaxColumns, "want at least one column with its fields; the first field is the shard field")
	if !ok {
		return nil
	}
	var columns []Column
	seen := map[string]int{}
	fields := fieldSet{}
	for _, item := range items {
		values, ok := p.mapping(item, "a column_def", "column_key", "fields")
		if !ok {
			continue
		}
		var c Column
		if s, at, ok := p.text(values["column_key"], "column_key"); ok {
			c.Key = s
			if err := cellog.CheckColumn(s); err != nil {
				p.fail(at, "column_key: %v", err)
			} else if line, twice := seen[s]; twice {
				p.fail(at, "column_key %s is already in line %d: put all its fields there", s, line)
			} else {
				seen[s] = at.Line
			}
		}
		c.Fields = p.fields(values["fields"], fields)
		columns = append(columns, c)
	}
	return columns
}

// fieldSet has the line of each field of the definition so far.
type fieldSet map[string]int

func (p *reader) fields(list ast.Node, seen fieldSet) []Field {
	missing := "want at least one field"
	if len(seen) == 0 {
		missing = "the shard field is missing: want at least one field, the first is the shard field"
	}
	items, ok := p.sequence(list, "fields", MaxFields, missing)
	if !ok {
		return nil
	}
	var fields []Field
	for _, item := range items {
		values, ok := p.mapping(item, "a field", "field", "type")
		if !ok {
			continue
		}
		var f Field
		if s, at, ok := p.text(values["field"], "field"); ok {
			f.Name = s
			line, twice := seen[s]
			switch {
			case !fieldName.MatchString(s):
				p.fail(at, "field %.80q: want a lower-case letter and up to 61 lower-case letters, digits or underscores", s)
			case reserved[s]:
				p.fail(at, "field %q is reserved: index tables or queries use this name themselves", s)
			case twice:
				p.fail(at, "field %s is already in line %d", s, line)
			default:
				if seen[s] = at.Line; len(seen) == MaxFields+1 {
					p.fail(at, "field %s is one too many: an index has at most %d", s, MaxFields)
				}
			}
		}
		if s, at, ok := p.text(values["type"], "type"); ok {
			f.Type = Type(s)
			if !slices.Contains(Types, f.Type) {
				p.fail(at, "type %.40q: want uuid, string, int64, decimal, float64, bool or datetime", s)
			}
		}
		fields = append(fields, f)
	}
	return fields
}

// mapping returns the values of a mapping that must have exactly these keys,
// each once; a missing one is reported, and has no value. ok is false if n is
// no mapping.
func (p *reader) mapping(n ast.Node, what string, keys ...string) (_ map[string]ast.Node, ok bool) {
	var members []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		members = n.Values
	case *ast.MappingValueNode:
		members = []*ast.MappingValueNode{n}
	default:
		p.fail(place(n), "%s is %s: want a mapping with %s", what, kind(n), list(keys))
		return nil, false
	}
	values := make(map[string]ast.Node, len(keys))
	lines := make(map[string]int, len(keys))
	for _, m := range members {
		at := place(m.Key)
		key, isString := m.Key.(*ast.StringNode)
		switch {
		case !isString || !slices.Contains(keys, key.Value):
			p.fail(at, "unknown key %.60q in %s: want %s", m.Key.GetToken().Value, what, list(keys))
		case lines[key.Value] > 0:
			p.fail(at, "key %s is already in line %d", key.Value, lines[key.Value])
		default:
			lines[key.Value] = at.Line
			values[key.Value] = m.Value
		}
	}
	for _, key := range keys {
		if lines[key] == 0 {
			p.fail(place(n), "key %s is missing in %s", key, what)
		}
	}
	return values, true
}

// sequence returns the items of a list of 1 to max.
func (p *reader) sequence(n ast.Node, what string, max int, empty string) ([]ast.Node, bool) {
	if n == nil {
		return nil, false // reported as a missing key
	}
	s, ok := n.(*ast.SequenceNode)
	switch {
	case !ok:
		p.fail(place(n), "%s is %s: want a list", what, kind(n))
		return nil, false
	case len(s.Values) == 0:
		p.fail(place(n), "%s is an empty list: %s", what, empty)
		return nil, false
	case len(s.Values) > max:
		p.fail(place(s.Values[max]), "%s has %d items: want at most %d", what, len(s.Values), max)
		return nil, false
	}
	return s.Values, true
}

// text returns a string and its place.
func (p *reader) text(n ast.Node, what string) (string, *token.Position, bool) {
	if n == nil {
		return "", nil, false // reported as a missing key
	}
	s, ok := n.(*ast.StringNode)
	if !ok {
		p.fail(place(n), "%s is %s: want a string", what, kind(n))
		return "", nil, false
	}
	return s.Value, place(n), true
}

// place returns where a node begins; a mapping begins at its first key.
func place(n ast.Node) *token.Position {
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return place(m.Values[0])
		}
	case *ast.MappingValueNode:
		return m.Key.GetToken().Position
	}
	return n.GetToken().Position
}

// kind names what a node is, for "is …: want …".
func kind(n ast.Node) string {
	switch n.(type) {
	case *ast.NullNode:
		return "empty"
	case *ast.BoolNode:
		return "a bool"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.StringNode:
		return "a string"
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor or alias"
	case *ast.TagNode:
		return "a tag"
	}
	return "something else"
}

func list(keys []string) string {
	return strings.Join(keys[:len(keys)-1], ", ") + " and " + keys[len(keys)-1]
}
