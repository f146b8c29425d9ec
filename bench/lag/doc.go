// Package lag measures how soon cells come out: from the answer of a put over
// HTTP to a plain reader of Kafka, to a trigger's function and to an index, at
// a steady rate on everything that `cellog dev` starts, in one process.
//
//	go test -run '^$' -bench . -benchtime 1x ./bench/lag
//
// CELLOG_BENCH_RATE sets the cells a second (default 2000), CELLOG_BENCH_CELLS
// their number (default 30000), CELLOG_MYSQLD the server, CELLOG_TEST_KAFKA=real
// takes Apache Kafka instead of the embedded broker. It promises
// nothing but its numbers; anything that fails ends it.
package lag
