package indexer

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cellog/cellog/schemas/indexdef"
)

var (
	described       = regexp.MustCompile(`^([^/ ]+)/([^/ ()]+)((?: [^ ()]+\([^()]*\))+)$`)
	describedColumn = regexp.MustCompile(` ([^ ()]+)\(([^()]*)\)`)
)

// Described returns the index that Describe described: servers keep that line,
// so a tool needs no folder of definitions.
func Described(line string) (*Index, error) {
	m := described.FindStringSubmatch(line)
	if m == nil {
		return nil, fmt.Errorf("%.200q does not describe an index", line)
	}
	def := indexdef.Definition{Datastore: m[1], Table: m[2]}
	for _, c := range describedColumn.FindAllStringSubmatch(m[3], -1) {
		column := indexdef.Column{Key: c[1]}
		for _, f := range strings.Split(c[2], ", ") {
			name, typ, _ := strings.Cut(f, " ")
			column.Fields = append(column.Fields, indexdef.Field{Name: name, Type: indexdef.Type(typ)})
		}
		def.Columns = append(def.Columns, column)
	}
	return NewIndex(def)
}
