// Package tail measures how fast a tailer drains a backlog: from a binlog over
// the whole of cdc to a Kafka broker, in cells per second, beside what a bare
// loop does that reads, inflates and transcodes the same binlog on all cores
// and drops the result.
//
//	go test ./bench/tail -run '^$' -bench Drain -benchtime 1x
//
// Backfill does the same from the entity tables, beside a bare select of the same
// rows; ManyShards drains 4,096 shards (or CELLOG_BENCH_SHARDS) beside 16, and
// starts the tailer again.
//
// CELLOG_BENCH_CELLS is the number of cells (default 100,000), and the
// variables of internal/mysqltest and internal/kafkatest choose the server and
// the broker. With kfake the broker works in the same process, on the same
// cores.
package tail
