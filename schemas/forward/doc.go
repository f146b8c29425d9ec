// Package forward is the shape of cells in stored form on their way from the
// worker that a client asked to others: to the home worker of their shard, and
// to another cluster's master, which keeps copies of them.
//
// # To the home worker
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
// # To another cluster's master
//
// One row of cellog_buffer.numbered_copies has the cells of a run: of one shard
// and epoch, whose added_ids follow each other without a hole. So what a writer
// stored together costs the holder one row, not one a cell:
//
//	cells     1 byte version, added_id of the first 8, then per cell: created_at 8
//	          in µs since 1970, and the cell as in a request
//
// # Promises
//
// It promises that hostile or cut bytes give an error, never a crash, and cost
// memory in proportion to their length. It does not promise that different
// versions of cellog understand each other: one that does not is answered with
// an error, and then each worker writes its own cells.
package forward
