// Package devbroker is the embedded Kafka broker of cellog dev: franz-go's kfake
// with a data directory, plus what kfake lacks to survive kill -9.
//
//	b, err := devbroker.Start(devbroker.Config{Dir: dir})
//	defer b.Stop()
//	client(b.Addrs())
//
// # Promises
//
//  1. What was acknowledged is there after kill -9 at any moment, and a
//     transaction is there wholly or not at all (see repair below).
//  2. Without Config.NoSync every batch is on disk before it is acknowledged.
//  3. Compacted topics are compacted at each start, when they are worth it; a
//     crash while that runs loses nothing. Nothing is trimmed by age unless its
//     topic says so: kfake's default of 7 days also trims compacted topics.
//
// Not promised: replication, several brokers, Kafka's speed. A batch that a
// client outside this process sends again after a crash may be there twice
// (kfake keeps its sequence numbers only over an orderly stop), and offsets that
// were committed within a transaction may be missing after a crash. Compacted
// topics grow while the broker runs.
//
// # Repair
//
// kfake ends a transaction by a marker in one partition after the other. After
// a crash in between it takes the transaction for committed in some partitions
// and for aborted in others; and an aborted one without a marker is taken for
// committed after the next crash. So before kfake opens the directory, this
// package writes the missing markers: commit where any partition has the commit
// marker of that producer and epoch (Kafka 4's protocol gives every transaction
// its own epoch), else abort. It cuts off half-written batches, and batches
// without an index entry, which were never acknowledged and which kfake would
// take for plain ones.
//
// # Failures
//
// The port is taken: Start fails. The disk is full: kfake answers clients with
// errors. The process dies: see promise 1.
package devbroker
