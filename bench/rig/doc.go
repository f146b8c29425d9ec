// Package rig measures our tailer beside Debezium, the tool that people know
// for this job, and beside two limits, on one machine and in one run. docs/rig.md
// says how to run it, what is equal and what is not.
//
//	make rig                                   # fetches what is missing, then runs all
//	CELLOG_RIG=cellog-json,debezium-tuned go test ./bench/rig -run '^$' -bench Rig -benchtime 1x -timeout 6h
//
// CELLOG_RIG names what to measure (all, or names with commas between); without
// it the benchmark is skipped. The other variables, with their defaults:
//
//	CELLOG_RIG_CELLS   200000            cells of a backlog; 0: no backlogs
//	CELLOG_RIG_TX      8,1               cells in a MySQL transaction, a backlog for each
//	CELLOG_RIG_RUNS    1                 runs of each line, of which the table shows medians
//	CELLOG_RIG_SECONDS 10                seconds of load at each rate; 0: no latencies
//	CELLOG_RIG_VALUES  json,msgpack,stored  values of our records; those unknown to the configuration are left out
//	CELLOG_RIG_OUT                       a folder for the raw results, out-DATE.jsonl; none: they are not kept
//	CELLOG_RIG_TABLES                    measure nothing, print the tables of these raw results, with commas between
//	CELLOG_DEBEZIUM_DIR                  what tools/get-debezium.sh made; default the nearest .cache/debezium
//
// and those of internal/mysqltest and internal/kafkatest: Debezium wants MySQL
// and Apache Kafka.
//
// Promises:
//
//  1. Every line is a process of its own, alone with a MySQL server, a new
//     broker and this process, and its CPU and memory are the kernel's figures.
//  2. All are counted in the same way: by the records of committed batches that
//     the broker hands out, of which only the headers are read, so counting
//     costs the same few microseconds for a batch whoever wrote it. A run whose
//     count is not exactly the number of cells fails.
//  3. All of it listens on 127.0.0.1 only, lies under TMPDIR, and is gone when
//     the rig ends or is interrupted. After a kill -9 no process stays either,
//     and the next run removes the files.
//  4. A run that stands still for two minutes ends with an error and the end of
//     the process's log.
//
// Not promised: anything about machines of other sizes, networks, or replicated
// brokers.
package rig
