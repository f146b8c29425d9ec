// Package feed hands the cells of column topics, in order, to a function, and
// commits their offsets when they are finished. Triggers and the indexer stand
// on it.
//
//	f, err := feed.New(feed.Config{
//		Kafka: kafka.Config{Addrs: brokers}, Group: "cellog.billing", Topics: []string{"trips.BASE"},
//		Handle: func(ctx context.Context, d feed.Delivery) error { return charge(ctx, d.Cell) },
//	})
//	err = f.Run(ctx)
//
// Promises:
//
//  1. Every cell comes at least once: an offset is committed only when its
//     cell and all before it in the partition are finished.
//  2. Cells of one row come in the order of the log, the next one only after
//     the one before is finished. Rows of a partition come in parallel. In
//     batch mode the whole partition comes in order.
//  3. A cell that fails is tried again, at growing distances, for as long as
//     it takes; other rows go on until the partition's window (MaxCells,
//     MaxBytes, counted from the first unfinished cell) is full.
//  4. A cell whose ce_sequence was read before is dropped; one that leaves a
//     number out stops its partition before it is handed out: Err, OnStop, the
//     log and a metric say so.
//  5. When a partition goes to another member, handlers have Drain to finish;
//     after that their context ends, their results are ignored and nothing is
//     committed for the partition. The next holder has a higher Generation.
//  6. What is held is bounded, whatever the function does: per partition by
//     the window and one fetch.
//
// In the same words: nothing is skipped, nothing is done out of order within a
// row, some things are done twice. Not promised: that a function which ignores
// its context stops; whoever writes somewhere else checks Generation there.
// Marks of more shards than fit into a commit's metadata (about 200) are not
// kept over a restart.
//
// When Kafka is away, nothing comes and nothing is committed, and the member
// joins again by itself. When the function is stuck, its partition waits, and
// Oldest grows. When the process dies, another member gets the partitions
// after SessionTimeout, from the last commit.
package feed
