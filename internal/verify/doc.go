// Package verify proves that the stream and the indexes are what the entity
// tables say: every cell once in Kafka, in order, with its own body, and every
// index entry where it belongs.
//
//	report, err := verify.Run(ctx, verify.Config{…})
//	if !report.Clean() { … }
//
// How: the last added_id of every shard is captured first; then it waits, for
// a bounded time, until the tailers say that those cells are final; then each
// partition is compared by a merge. The entity tables of the partition's
// shards are read in added_id order, the shard whose next cell is oldest
// first, and for each cell the next record of its shard is pulled from its
// column's topic. So it works while writes go on, and its memory is that of
// one page per shard of the partitions in work plus what the shards of a
// partition are apart in the topics.
//
// The merged topic, if there is one, is compared in the same pass, as one more
// topic that has the cells of all columns.
//
// It promises that any record lost, doubled, swapped or changed below the
// captured positions is counted, once and under one name, and so is a record
// that is no cell's and a cell that is damaged; Details name each. A fault that
// shifts the ce_sequence of all records behind it counts once. It never writes.
//
// It does not promise anything about cells put after the start, and it trusts
// the entity tables: a shard's own log is checked for holes, and for rows above
// shard_log's number, only.
//
// When a server or the broker is away the run ends with an error, not with a
// report.
package verify
