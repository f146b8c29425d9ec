// Package mysqlreplica does what a promotion and a rejoin need of MySQL's and
// MariaDB's replication, by SQL alone, over any connection of an account that
// has all privileges. Both flavours look the same from outside.
//
//	err := mysqlreplica.StopReceiving(ctx, db)
//	err = mysqlreplica.WaitApplied(ctx, db) // all that it got counts now
//	err = mysqlreplica.Follow(ctx, minion, mysqlreplica.Source{Addr: addr, User: u, Password: p})
//	err = mysqlreplica.WaitReceivingAndApplying(ctx, minion)
//	err = mysqlreplica.Rebuild(ctx, cfg) // a copy of one server, as its minion
//
// # Promises
//
//  1. Replication goes by GTID always, so a minion may be given any source that
//     has what it lacks. One that is ahead of its source, or beside it, does
//     not follow: WaitReceivingAndApplying, or a later WaitForGTIDs, says
//     ErrStopped with the server's words.
//  2. Every function may be called again, in whatever state the one before left
//     the server. A Rebuild that was interrupted leaves a server that is
//     read-only, follows none and says that it belongs to no cluster.
//  3. A wait ends when it is fulfilled, when it cannot be any more (ErrStopped)
//     or with its context; never by a clock of its own.
//  4. Passwords are in no error.
//
// Not promised: that read_only keeps an administrator from writing on MariaDB,
// which has no super_read_only; replication with several sources; and that a
// rebuilt server's accounts have their rights on shards that it did not have
// before: Rebuild leaves mysql.* alone, see RebuildConfig.Complete.
//
// # Failures
//
// The server is gone or refuses: an error with the statement. It does not name
// the node, whose name only the caller knows; Rebuild's names both addresses.
package mysqlreplica
