// Package forward is the shape of cells on their way from the worker that a
// client asked to the home worker of their shard.
//
//	POST /internal/cells/{datastore}     Cellog-Worker: NAME
//
// The body and the answer are binary, because a body in stored form needs
// neither checking nor encoding again (all integers big endian):
//
//	request   1 byte version, then per cell: row_key 16, ref_key 8,
//	          column 1 + n, traceparent 1 + n, body 4 + n
//	answer    1 byte version, then per cell: 1 byte outcome (1 created, 2 same,
//	          3 conflict, 4 buffered), added_id 8, epoch 4, created_at 8 in µs since 1970;
//	          or 1 byte 0, code 1 + n, text 2 + n
//
// NAME is the receiver's name, which only workers know (it is kept in MySQL):
// a request without it is refused, so no client can store bytes that no worker
// has checked, and cells for a worker that is gone never reach another one at
// its address.
//
// It promises that hostile or cut bytes give an error, never a crash, and cost
// memory in proportion to their length. It does not promise that different
// versions of cellog understand each other: one that does not is answered with
// an error, and then each worker writes its own cells.
package forward
