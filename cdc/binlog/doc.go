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
//  4. A transaction of any size needs bounded memory. One bigger than
//     Config.MaxTransactionBytes is not kept: its changes say up to which
//     added_id rows were inserted, and the tailer reads them from the entity
//     table. While it is read the tailer is told how far it is.
//  5. A compressed transaction is unpacked event by event. Packed it is one
//     event as it comes, so at most 1 GiB, and briefly up to three times that
//     while the library takes it in: the servers compress nothing bigger. No
//     length that an event declares is believed before it was checked.
//  6. A statement that takes an entity table away or empties it (TRUNCATE, DROP,
//     RENAME, ALTER … RENAME, CREATE OR REPLACE, DROP DATABASE) is reported as
//     its shard's Lost change. A statement where rows should be (binlog_format
//     other than ROW) marks its transaction.
//  7. Errors and logs never hold row contents.
//
// Why nothing is given before a transaction's end, however big: after a crash
// MariaDB may leave a half-written group at the end of a file, which a dump
// thread sends before the next file's format event. It was rolled back.
//
// Bodies point into the network packets they came in; a batch of a transaction
// lives as long as one of its rows. docs/tailing.md says what happens to the
// stream, whatever happens to a binlog.
//
// When the server is away, or answers too slowly, Run returns the error; the
// tailer owns the reconnect. When the server has purged what follows the
// position, or sends what cannot be decoded, Run returns cdc.ErrPositionLost.
package binlog
