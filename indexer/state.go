package indexer

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// Newest says which cell of a column is the newest known: the one with the
// highest ref_key.
type Newest struct {
	// Set is false while no cell is known.
	Set   bool
	Ref   cellog.RefKey
	Added cellog.AddedID
}

// after says whether n is newer than m.
func (n Newest) after(m Newest) bool {
	switch {
	case !n.Set:
		return false
	case !m.Set || n.Ref > m.Ref:
		return true
	}
	return n.Ref == m.Ref && n.Added > m.Added
}

// State is what is known of one row for one index: of each column its newest
// cell, and the fields of those cells. States of a row form a lattice: Join
// only ever adds knowledge, so the end does not depend on the order.
type State struct {
	// Columns has a place per column of the index, Fields one per field.
	Columns []Newest
	Fields  []Value
	// Removals are the shard values under which an entry may still lie. Only
	// a state that is kept (a home row) has any.
	Removals []Value
}

// NewState returns the state of a row of which nothing is known.
func (ix *Index) NewState() State {
	return State{Columns: make([]Newest, len(ix.columns)), Fields: make([]Value, len(ix.fields))}
}

// Join takes over what other knows better: of each column the newer cell. It
// returns whether anything changed. If that moves the row to another shard
// value, the old one is added to the removals.
func (ix *Index) Join(s *State, other State) bool {
	was, changed := s.Fields[0], false
	for c := range ix.columns {
		if !other.Columns[c].after(s.Columns[c]) {
			continue
		}
		s.Columns[c] = other.Columns[c]
		copy(s.Fields[ix.from[c]:ix.from[c+1]], other.Fields[ix.from[c]:ix.from[c+1]])
		changed = true
	}
	if now := s.Fields[0]; now != was {
		if !was.Null() && !slices.Contains(s.Removals, was) {
			s.Removals = append(s.Removals, was)
		}
		s.Removals = slices.DeleteFunc(s.Removals, func(v Value) bool { return v == now })
	}
	return changed
}

// Version orders the states of a row, and compares as bytes. It grows with
// every Join that changes something, and is a pure function of the cells that
// are known: the sum, over the columns, of the newest ref_key's distance from
// the lowest one, plus one. (A counter would depend on the order of arrival,
// and then two indexes of the same cells could differ.)
type Version [9]byte

// Version returns the state's version; that of an unknown row is zero.
func (s State) Version() (v Version) {
	var high, low uint64
	for _, c := range s.Columns {
		if !c.Set {
			continue
		}
		var carry uint64
		low, carry = bits.Add64(low, uint64(c.Ref)+1<<63, 1)
		high += carry
	}
	v[0] = byte(high)
	binary.BigEndian.PutUint64(v[1:], low)
	return v
}

// Row is a row that a batch touches, with the newest cells that the batch has.
type Row struct {
	Key   uuid.UUID
	Shard cellog.ShardID
	State State
}

// Applied says that all cells of a column up to one have been applied.
type Applied struct {
	Shard     cellog.ShardID
	Column    string
	AddedID   cellog.AddedID
	CreatedAt time.Time
}

// Progress says that a topic's partition has been applied up to an offset.
type Progress struct {
	Topic     string
	Partition int32
	// Next is the offset of the first record that has not been applied.
	Next int64
}

// Part is the share of one index in a batch.
type Part struct {
	Index *Index
	// Rows are in no order, each row once.
	Rows     []Row
	Applied  []Applied
	Progress []Progress
}

// Batch is what is applied together. All parts are of one datastore, and of
// different indexes.
type Batch struct {
	Datastore string
	Parts     []Part
}
