// Package indexdef reads the definition of a secondary index, a YAML file:
//
//	table: driver_partner_index
//	datastore: trips
//	column_defs:
//	  - column_key: BASE
//	    fields:
//	      - {field: driver_partner_uuid, type: uuid}
//	      - {field: city_uuid, type: uuid}
//	      - {field: trip_created_at, type: datetime}
//
// table names the index, datastore the datastore whose cells it is made from.
// Each column_def takes fields out of the cells of one column: a field is the
// member of that name of the body, which must be an object. The very first
// field is the shard field: entries live in the shard of its value, and every
// query gives it.
//
// The reader is strict. Unknown and repeated keys, values of another type,
// names that are illegal or reserved: each is an Error with file, line and
// column, and all of a file are returned at once. YAML's anchors, aliases,
// tags, multi-line strings and second documents have no use here and are
// refused, so a file means what it looks like.
//
// Not done here: taking fields out of bodies, and tables (package indexer).
package indexdef
