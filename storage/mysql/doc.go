// Package mysql keeps cells in MySQL and MariaDB. It holds the only SQL for
// the tables entity and shard_log.
//
//	st, err := mysql.New(mysql.Config{Clusters: clusters})
//	err = st.Start(ctx)
//	stored, errs := st.Write(ctx, "trips", 7, puts)
//	cell, origin, err := st.Newest(ctx, "trips", row, "BASE", cellog.Master)
//
// # Promises
//
//  1. A shard's added_ids are 1, 2, 3, … in commit order, without holes: they
//     are counted in shard_log, under its row's lock, which is held until the
//     commit (an auto-increment is handed out before the commit and shows a
//     reader ids out of order; a rejected duplicate burns one).
//  2. A key is stored once. Write answers for each cell whether it was created,
//     stood there with an equal body, or stands there with another one; also
//     among the cells of one batch, where the first one counts.
//  3. A write whose answer was lost is never guessed: the store takes the
//     shard_log lock on a new connection, so that the old session can no longer
//     commit, and then looks. If that cannot be done in time the error is
//     storage.ErrOutcomeUnknown. Every other error means that nothing was kept.
//  4. A column beyond the cluster's limit is refused before anything is kept;
//     columns are counted in the transaction that stores their first cell.
//  5. Every body that is read has its checksum verified.
//
// # Transactions
//
// A write is one packet (READ COMMITTED), so that the shard's lock is never held
// over a round trip or a worker's pause:
//
//	START TRANSACTION; SET @l = NULL;
//	UPDATE shard_log SET last_added_id = last_added_id + n … WHERE id = 1 AND epoch = e AND state = 'open';
//	SELECT last_added_id - n, last_created_at INTO @l, @t FROM shard_log WHERE …;
//	INSERT INTO entity … VALUES (@l+1, e, …, @t), …; COMMIT; SELECT @l, @t
//
// A stale epoch leaves @l NULL, which the INSERT refuses; a duplicate key fails
// it too; and what fails in a packet keeps the rest of it from being run, the
// COMMIT first of all. On a duplicate the lock stays: the keys are looked up
// and a second packet lowers last_added_id and inserts the rest.
//
// Writes of several shards that wait for one server share a transaction, one at
// a time, or two when many wait: the same in sections, one a shard, with one commit. It takes the
// shards' locks in order and waits for none (FOR UPDATE NOWAIT). Whatever is in
// its way, a duplicate or a stale route of one shard too, undoes all of it, and
// each write goes on alone as above, and so do the next ones for a while. A lost
// answer is looked up shard by shard.
//
// Sessions that write have wait_timeout=3 and innodb_lock_wait_timeout=2: a
// frozen worker holds a shard for three seconds at most. Idle connections are
// dropped by this side after two.
//
// # Neighbours that fail
//
// A server that does not answer: its breaker opens, writes get ErrUnavailable
// at once, reads of the master go to a minion and say that they may be stale.
// A shard that has moved: the write touches no row, the store asks the servers
// for the new route and goes on. A server that restarts: what was in flight is
// resolved as in promise 3.
//
// Not promised: several processes may write to one shard; the order stays
// strict, but they wait for each other's transactions.
package mysql
