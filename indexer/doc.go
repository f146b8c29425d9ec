// Package indexer pulls index entries out of cells and keeps index tables in
// step.
//
//	ix, err := indexer.New(indexer.Config{Kafka: kafka.Config{Addrs: brokers}, Tables: tables, Shards: shards, Indexes: indexes})
//	err = ix.Run(ctx)
//
// An index belongs to a datastore and is made from the newest cells of one or
// more columns. It has one entry per row whose shard field, the first one, is
// not null; the entry lives in the shard of that field's value, so a query by
// it asks one shard.
//
// # Promises
//
//  1. The tables converge on the cells: of each column the cell with the
//     highest ref_key counts, whatever is replayed, repeated or late. They are
//     a pure function of the set of cells; reading the topics again from the
//     first record leaves them byte for byte the same.
//  2. A cell's offset is committed only after its batch is durable in the
//     tables of all servers.
//  3. A row that moves to another value of the shard field is found under the
//     old one, both, or the new one, in this order, and never under neither.
//  4. No cell stops an index: a field that is missing is null, one of the
//     wrong type is null and counted.
//
// Not promised: that a query sees a cell as soon as its put was answered; that
// entries of one batch become visible together.
//
// # When a neighbour fails
//
// Kafka away: nothing comes, the tables keep what they have, the group is
// joined again. A MySQL server away: the batches wait and are tried again, and
// the lag grows; queries of the other servers go on. The indexer dies: its
// partitions go to another one, which starts at the last committed offset or
// at the progress that the servers kept, whichever is lower.
//
// The adapter indexer/table does the SQL; its documentation says how a batch
// is applied.
package indexer
