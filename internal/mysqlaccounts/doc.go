// Package mysqlaccounts makes the MySQL accounts of cellog's roles, each with no
// more rights than it needs. deploy/local, cellog datastore create and the
// tests use it, so a test runs with production's rights.
//
//	admin     everything: makes databases, accounts, promotes (AdminRights: the least)
//	worker    SELECT and INSERT in shards, UPDATE in shard_log, all of
//	          cellog_meta and cellog_buffer; it cannot change or remove a cell
//	tailer    the binlog, SELECT, heartbeats in cellog_meta
//	indexer   SELECT in shards, all of the index tables: for them it may also
//	          change and make tables in shards
//	replica   the binlog, for minions
//
// # Promises
//
//  1. Create and GrantDatastore may be run again: they end in the same rights.
//  2. Rights on shards come by one pattern per datastore (`trips\_%`), plus, for
//     the worker, UPDATE on each shard_log: MySQL has no way to exclude a table
//     from a pattern. So GrantDatastore costs one short statement per shard.
//  3. Lacking changes nothing: it returns the GRANTs that a server lacks. Whoever
//     runs them with sql_log_bin = 0 leaves no trace in the binlog.
//  4. Passwords go to the server as text in the statement and are in no error.
//
// Not promised: that the indexer cannot change a cell. The tailer stops a shard
// in which anyone did.
//
// # Failures
//
// The server refuses or is gone: an error that names the account and the
// statement's kind; run it again. Statements are written to the binlog, so
// minions have the accounts when they have caught up.
package mysqlaccounts
