// Package storage holds the words of the place where cells lie: clusters of
// one master and its minions, the route to a shard, and what may go wrong on
// the way. The adapter storage/mysql does the work; storage/storagetest holds
// what every cell store must do.
//
// # Promises
//
//  1. A shard is where the open shard_log with the highest epoch is, on a node
//     that says itself that it is writable. Configuration only names servers.
//  2. An error of a write tells what became of the cell: ErrOutcomeUnknown
//     means that it may be stored; every other error means that nothing was
//     kept. Each error carries a stable code (errors.As to Coder).
//
// Not promised: that a route stays right. A write under a stale route touches
// no row (its epoch is in the statement), and the caller takes a new route.
package storage
