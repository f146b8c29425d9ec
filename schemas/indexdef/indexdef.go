package indexdef

import "regexp"

// Type is the type of a field's values.
type Type string

// The types. What JSON values each takes is told in package indexer.
const (
	UUID     Type = "uuid"
	String   Type = "string"
	Int64    Type = "int64"
	Decimal  Type = "decimal"
	Float64  Type = "float64"
	Bool     Type = "bool"
	DateTime Type = "datetime"
)

// Types are all types, in the order in which messages list them.
var Types = []Type{UUID, String, Int64, Decimal, Float64, Bool, DateTime}

// The limits of a definition.
const (
	// MaxFileBytes is the size of the longest file, ten times what the largest
	// definition needs. The parser's time grows with the square of the nesting:
	// a file of this size that is all brackets takes it about a second.
	MaxFileBytes = 32 << 10
	// MaxColumns is the largest number of column_defs.
	MaxColumns = 16
	// MaxFields is the largest number of fields of all columns: a row of so
	// many strings fits MySQL's longest row.
	MaxFields = 32
)

// Field is a field of an index.
type Field struct {
	Name string
	Type Type
}

// Column says which fields come from the cells of one column.
type Column struct {
	// Key is the column's name, such as BASE.
	Key string
	// Fields has at least one field.
	Fields []Field
}

// Definition is a secondary index, checked.
type Definition struct {
	// Table is the index's name: the tables are idx_<table> and
	// idx_<table>_home.
	Table string
	// Datastore is the datastore of the cells and of the index.
	Datastore string
	// Columns has at least one column; no column is there twice, no field is
	// in two of them.
	Columns []Column
	// File and Line say where the definition begins, for messages.
	File string
	Line int
}

// ShardField returns the field by whose value entries are placed: the first
// field of the first column.
func (d Definition) ShardField() Field { return d.Columns[0].Fields[0] }

// Fields returns the fields of all columns in order, the shard field first.
func (d Definition) Fields() []Field {
	var all []Field
	for _, c := range d.Columns {
		all = append(all, c.Fields...)
	}
	return all
}

var (
	// The longest table is idx_<table>_home, of MySQL's 64 characters.
	tableName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,54}$`)
	// A field's column in MySQL has a prefix of two characters.
	fieldName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,61}$`)
)

// reserved are the names that index tables, queries and their answers use
// themselves.
var reserved = map[string]bool{
	"added_id": true, "as_of": true, "body": true, "cells": true, "column": true, "column_name": true, "columns": true,
	"count": true, "created_at": true, "cursor": true, "epoch": true, "explain": true, "fields": true, "id": true,
	"limit": true, "order": true, "partial": true, "read": true, "ref_key": true, "row_key": true, "select": true,
	"shard": true, "token": true, "updated_at": true, "version": true, "wait": true,
}
