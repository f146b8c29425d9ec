// Package table is the only SQL for index tables: it makes them, applies
// batches of cells to them and looks entries up.
//
//	tables, err := table.New(table.Config{Places: store})
//	err = tables.Ensure(ctx, index)   // once per start
//	err = tables.Apply(ctx, batch)    // again and again
//
// # Tables
//
// In every shard's database, per index:
//
//	idx_<name>_home   one home row per row_key that lives in the shard: of each
//	                  column the newest ref_key and its added_id, all fields,
//	                  the values under which old entries must still be removed,
//	                  and the version
//	idx_<name>        one entry per row whose shard field's value lives in the
//	                  shard, clustered by (value, row_key)
//
// In cellog_meta of every server: index_gates (the lock that a shard's mover
// takes), index_sources (assignment numbers), index_progress and
// index_applied. Names are built from checked definitions only; every value is
// bound.
//
// # How a batch is applied
//
// On all servers at the same time, each step in one transaction per server:
//
//	A  home     join the batch into the home rows; note the values left
//	B  project  write the entry of every row that the batch touches
//	C  remove   delete the entries under values that rows have left
//	D  finish   forget the values removed; say how far all cells are applied
//	            (which is most often all there is to do, in one statement)
//
// If one server has it all, the four are one transaction. A row that moves
// from one value to another is thus visible under both for a moment, never
// under neither. After a crash between any two steps the batch comes again,
// because offsets are committed last; it projects every row it touches,
// changed or not, from the home row as it is by then.
//
// # Promises
//
//  1. The tables are a pure function of the set of cells applied: no clock, no
//     counter, no order of arrival is in them.
//  2. Whoever applies late changes nothing. Every transaction shows the
//     assignment number of its source shards. Home and target refuse a lower
//     one than they know (ErrRefused); whoever is refused takes a new number
//     and starts again from the home rows as they are by then. So an old
//     projection can never bring back an entry that a newer one removed, even
//     if two processes feed one index from two columns.
//  3. Every transaction holds a shared lock on the gate of each shard that it
//     writes, and then reads that the shard is open in the epoch that the
//     route named; else ErrStaleRoute. Who closes a shard sets its state, then
//     takes the gate's lock once: after that no index transaction is under
//     way. (A shared lock on shard_log itself would say the same, but all puts
//     of the shard would queue behind every index transaction.)
//
// Not promised: that entries of one batch become visible together.
//
// # When a neighbour fails
//
// Every error leaves the batch to be applied again; Apply keeps nothing but
// the assignment numbers. A server that is gone holds up all batches that
// touch its shards. A removal that a crashed master had committed and its
// promoted minion has not seen comes back as an extra entry, which Verify
// finds.
package table
