// Package record is the shape of a cell in Kafka: one record in the column's
// topic (and the same in the merged topic, if the datastore has one).
//
//	key      the row_key, 36 lower-case characters
//	value    the body, never null, in the Form that the content-type says
//	time     created_at (Kafka keeps milliseconds; ce_time has microseconds)
//	headers  CloudEvents 1.0, Kafka binary mode:
//	  content-type    application/json, application/msgpack or
//	                  application/vnd.cellog.body
//	  ce_specversion  1.0
//	  ce_id           <datastore>/<shard>/<added_id>
//	  ce_source       /cellog/<datastore>
//	  ce_type         cellog.cell.v1
//	  ce_subject      <row_key>/<column>/<ref_key>
//	  ce_time         created_at, RFC 3339, UTC, always six digits of seconds
//	  ce_sequence     the number of this column's cells in this shard up to
//	                  and with this one: 1, 2, 3, …
//	  ce_epoch        the cell's epoch
//	  traceparent     W3C trace context, only if the put had one
//
// Encode writes the headers in this order. Decode takes them in any order and
// lets unknown ones pass, so that a later version may add some; what it knows
// it reads strictly: each header exactly once, each number in its shortest
// form, and what is said twice (row key, datastore) said alike.
//
// The package does no input or output; all functions are safe for concurrent
// use.
package record
