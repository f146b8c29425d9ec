// Package cdc turns one storage cluster's committed rows into cells in Kafka,
// in commit order, each once.
//
//	t, err := cdc.New(cdc.Config{
//		Cluster:   "c1",
//		Publisher: publisher, // cdc/publish
//		Nodes:     nodes,     // each with a cdc/binlog reader and its tables
//	})
//	err = t.Start(ctx)
//	defer t.Stop(ctx)
//
// A cell's way:
//
//	binlog ─ Source.Run ─▶ sequencer ─▶ queue ─▶ transcoders ─▶ committer ─▶ Kafka
//	            (one goroutine)       (bounded)  (N goroutines)  (one goroutine)
//
// Promises:
//
//  1. Of each shard exactly added_id 1, 2, 3, … is published, in that order;
//     of each column in a shard exactly sequence 1, 2, 3, …. Whatever would
//     break this stops the shard, with an error that says what to do, and lets
//     the other shards go on.
//  2. A reader of committed records sees each cell once, over crashes, frozen
//     and thawed tailers, and restarts: cells and positions are one Kafka
//     transaction, and an older tailer is fenced before a newer one reads
//     where to go on.
//  3. What the binlog has lost, or never held in memory, comes from the entity
//     tables: Config.FillShards of them are read at a time, by pages of at most
//     1,000 rows and 1 MiB of bodies (or one that is bigger), each shard's in
//     order. A shard that lacks a row, or has a damaged one, stops before it;
//     the others go on.
//  4. A node is tailed only if it holds, at each shard's last place, the cell
//     that was published.
//  5. Two tailers never fence each other in turn: one stands by while the
//     other's heartbeats arrive in Kafka.
//  6. Ready is nil only while heartbeats that the master wrote arrive in Kafka,
//     so it fails when the stream stands still, whatever the reason. The lag, in
//     seconds and in cells, is true then, too. While a big transaction is read it
//     says so; signs of life in Kafka go on.
//  7. While an operator has paused the cluster nothing is published, over
//     restarts; the tailer holds its place, and afterwards goes on where it was.
//  8. Cells that a shard has and the binlog never shows (put as a statement,
//     with sql_log_bin off, or under GTIDs that the position had) are found
//     within Config.LookEvery, at the start at once.
//
// A record's value is the body as JSON, unless Config.Values wants another form
// (schemas/record); only JSON costs a JSON text, and the stored form is not even
// inflated: its checksum is checked.
//
// Not promised: that a stopped shard starts again by itself (mend the cause
// and restart the tailer), and that the position of the binlog moves while a
// shard is stopped: it stays, so that a restart meets the reason again.
//
// Reading the entity tables is work that a minion lacks to follow its master: while
// it is further behind than Config.FillMaxLag, reading pauses, but for a page a
// minute, since it may be behind for another reason, or on purpose. The log says
// so, and cellog_cdc_fill_paused; Status.Fill and a line every 10 s say how far it
// is. Until it has ended no heartbeat arrives, and Ready fails: the stream is
// behind.
//
// When the MySQL node is away, the session ends and a new one tries the nodes
// again, best first, every 50 ms to 5 s; likewise when the node shows nothing
// for 15 s of what is written on the master. When Kafka is away, the session waits
// and then ends likewise; memory stays bounded by Config.MaxQueueBytes, and a
// page for each shard that is being read. When the entity tables cannot be read,
// the same. When the master takes no heartbeats, cells flow on, and Ready fails.
// While no node can tell whether the cluster is paused, what is known stands.
package cdc
