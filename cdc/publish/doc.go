// Package publish writes cells to their shard's partition, and says what is
// durably there. It implements cdc.Publisher over internal/kafka, and is the
// only writer of the positions topics.
//
// Promises:
//
//  1. Cells, positions and heartbeats that are committed together are visible
//     to readers of committed records together, or not at all.
//  2. A session that was opened later fences all earlier ones of its cluster,
//     and ends what they left open in any partition, as their outcome was.
//  3. A column's topic is made on its first cell; one that is there and does
//     not fit stops the shards that need it, with the command that mends it.
//  4. Verify tells a topic that lost records from one that is whole.
//
// Not promised: that a Commit which returned an error was not committed. The
// positions that the next Open returns tell.
//
// When Kafka is away, calls wait until their context ends, and the broker
// aborts what stays open for longer than the transaction's timeout.
package publish
