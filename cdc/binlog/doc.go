// Package binlog reads one server's binlog over one connection and yields
// whole committed transactions, as cdc.Source. It is the one home of go-mysql.
//
// It serves MySQL 8.4 and later (GTIDs with and without tags, compressed
// transactions) and MariaDB 10.6 and later (compressed events too).
//
// Promises:
//
//  1. Transactions come in binlog order, each whole, and only after its end
//     event (XID, or COMMIT): what a crash cut off is never yielded.
//  2. A position is the GTID set of everything up to and with the transaction
//     that carries it; it moves only with the end event.
//  3. Of entity tables in shard databases only inserts are taken. An update, a
//     delete, a partial row image, an XA transaction or another column layout
//     than schemas/sqlfiles makes is reported as the shard's Bad change, in
//     its place among the transactions.
//  4. A transaction bigger than Config.MaxTransactionBytes is not kept in
//     memory: its changes say up to which added_id rows were inserted, and the
//     tailer reads them from the entity table.
//  5. Errors and logs never hold row contents.
//
// Not promised: that a statement that bypasses the row format (TRUNCATE, DROP)
// is noticed. Bodies point into the network packets they came in; a batch of a
// transaction lives as long as one of its rows.
//
// When the server is away, or answers too slowly, Run returns the error; the
// tailer owns the reconnect. When the server has purged what follows the
// position, Run returns cdc.ErrPositionLost.
package binlog
