package indexer

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/indexdef"
)

// Names end up in statements, so they are checked here too, whoever made the
// definition; package indexdef has the reasons and the better messages.
var (
	indexName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,54}$`)
	fieldName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,61}$`)
)

// Field is one field of an index.
type Field struct {
	Name string
	Type Type
}

// Column is one column of cells that an index is made from, with the fields
// that are taken from its cells' bodies.
type Column struct {
	Key    string
	Fields []Field
}

// Index is a checked definition, ready to use. It is never changed.
type Index struct {
	datastore, name string
	columns         []Column
	fields          []Field // of all columns, in order
	from            []int   // from[c] … from[c+1] are the fields of column c
	extract         []*node // by column
}

// NewIndex returns the index of a definition. It returns an error for what
// package indexdef would not have let through.
func NewIndex(def indexdef.Definition) (*Index, error) {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("index %.60q: %w", def.Table, fmt.Errorf(format, args...))
	}
	if err := cellog.CheckDatastore(def.Datastore); err != nil {
		return nil, refuse("%w", err)
	}
	if !indexName.MatchString(def.Table) || strings.HasSuffix(def.Table, "_home") {
		return nil, refuse("not a name of an index")
	}
	if n := len(def.Columns); n == 0 || n > indexdef.MaxColumns {
		return nil, refuse("%d columns: want 1 to %d", n, indexdef.MaxColumns)
	}
	if n := len(def.Fields()); n > indexdef.MaxFields {
		return nil, refuse("%d fields: want at most %d", n, indexdef.MaxFields)
	}
	ix := &Index{datastore: def.Datastore, name: def.Table, from: []int{0}}
	seen := map[string]bool{}
	for _, c := range def.Columns {
		if err := cellog.CheckColumn(c.Key); err != nil {
			return nil, refuse("%w", err)
		}
		if ix.column(c.Key) >= 0 || len(c.Fields) == 0 {
			return nil, refuse("column %s: there twice, or without fields", c.Key)
		}
		column, root := Column{Key: c.Key}, &node{field: -1}
		for _, f := range c.Fields {
			typ := typeNames[string(f.Type)]
			if !fieldName.MatchString(f.Name) || seen[f.Name] || typ == 0 {
				return nil, refuse("field %.80q of type %.20q: there twice, not a name, or not a type", f.Name, f.Type)
			}
			seen[f.Name] = true
			field := Field{f.Name, typ}
			root.add(path(field), len(ix.fields))
			ix.fields = append(ix.fields, field)
			column.Fields = append(column.Fields, field)
		}
		ix.columns = append(ix.columns, column)
		ix.from = append(ix.from, len(ix.fields))
		ix.extract = append(ix.extract, root)
	}
	return ix, nil
}

// Load reads the definitions of a folder.
func Load(dir string) ([]*Index, error) {
	defs, err := indexdef.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	indexes := make([]*Index, len(defs))
	for i, d := range defs {
		if indexes[i], err = NewIndex(d); err != nil {
			return nil, err
		}
	}
	return indexes, nil
}

// path is where a field's value is in the body: the member of that name.
// (Longer paths belong here.)
func path(f Field) []string { return []string{f.Name} }

// Datastore returns the datastore's name.
func (ix *Index) Datastore() string { return ix.datastore }

// Name returns the index's name.
func (ix *Index) Name() string { return ix.name }

// String returns datastore/name.
func (ix *Index) String() string { return ix.datastore + "/" + ix.name }

// Columns returns the columns that the index is made from. The caller must
// not change them.
func (ix *Index) Columns() []Column { return ix.columns }

// Fields returns the fields, the shard field first. The caller must not
// change them.
func (ix *Index) Fields() []Field { return ix.fields }

// field returns the number of a field, or -1.
func (ix *Index) field(name string) int {
	for i, f := range ix.fields {
		if f.Name == name {
			return i
		}
	}
	return -1
}

// column returns the number of a column, or -1.
func (ix *Index) column(key string) int {
	for i, c := range ix.columns {
		if c.Key == key {
			return i
		}
	}
	return -1
}

// Describe returns the definition in one line: equal for equal definitions.
func (ix *Index) Describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s", ix.datastore, ix.name)
	for _, c := range ix.columns {
		fmt.Fprintf(&b, " %s(", c.Key)
		for i, f := range c.Fields {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s %s", f.Name, f.Type)
		}
		b.WriteByte(')')
	}
	return b.String()
}
