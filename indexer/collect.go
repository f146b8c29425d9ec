package indexer

import (
	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// Collector makes a Part of cells. The zero value is not usable; NewCollector
// makes one.
type Collector struct {
	ix      *Index
	rows    []Row
	byKey   map[uuid.UUID]int
	applied []Applied
	scratch []Value
	// Cells and Mismatches count the cells that were of the index's columns,
	// and their fields that were of the wrong type.
	Cells, Mismatches int
}

// NewCollector returns a Collector without cells.
func NewCollector(ix *Index) *Collector {
	return &Collector{ix: ix, byKey: map[uuid.UUID]int{}, scratch: make([]Value, len(ix.fields))}
}

// Add takes a cell in; cells of other columns are left out. It keeps nothing
// of the body.
func (c *Collector) Add(cell *cellog.Cell) {
	column := c.ix.column(cell.Column)
	if column < 0 {
		return
	}
	c.Cells++
	c.note(cell)
	i, ok := c.byKey[cell.Row]
	if !ok {
		i = len(c.rows)
		c.byKey[cell.Row] = i
		c.rows = append(c.rows, Row{Key: cell.Row, Shard: cell.Shard, State: c.ix.NewState()})
	}
	s := &c.rows[i].State
	newest := Newest{Set: true, Ref: cell.Ref, Added: cell.AddedID}
	c.Mismatches += c.ix.Extract(column, cell.Body, c.scratch)
	if newest.after(s.Columns[column]) {
		s.Columns[column] = newest
		copy(s.Fields[c.ix.from[column]:c.ix.from[column+1]], c.scratch[c.ix.from[column]:])
	}
}

// note keeps the highest added_id per shard and column.
func (c *Collector) note(cell *cellog.Cell) {
	for i := range c.applied {
		if a := &c.applied[i]; a.Shard == cell.Shard && a.Column == cell.Column {
			if cell.AddedID > a.AddedID {
				a.AddedID, a.CreatedAt = cell.AddedID, cell.CreatedAt
			}
			return
		}
	}
	c.applied = append(c.applied, Applied{cell.Shard, cell.Column, cell.AddedID, cell.CreatedAt})
}

// Part returns what was collected, to be applied. The Collector must not be
// used afterwards.
func (c *Collector) Part() Part {
	return Part{Index: c.ix, Rows: c.rows, Applied: c.applied}
}

// Collect makes a Part of cells.
func Collect(ix *Index, cells []cellog.Cell) Part {
	c := NewCollector(ix)
	for i := range cells {
		c.Add(&cells[i])
	}
	return c.Part()
}
