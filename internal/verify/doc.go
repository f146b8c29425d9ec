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
// It promises that any record lost, doubled, swapped or changed below the
// captured positions is counted, each under one name; Details name the first
// of them. It never writes.
//
// It does not promise anything about cells put after the start, and it trusts
// the entity tables: a shard's own log is checked for holes only.
//
// When a server or the broker is away the run ends with an error, not with a
// report.
package verify
