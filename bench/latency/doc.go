// Package latency measures how long a cell takes through all of cellog at a
// steady rate: from the answer to a put until a trigger's function starts, and
// until an index query returns the row. Everything runs on this machine:
// `cellog dev` (two clusters of a master and a minion, embedded broker) in one
// process, the clients and the trigger in another.
//
//	go test ./bench/latency -run '^$' -bench Latency -benchtime 1x
//
// CELLOG_BENCH_RATE is the cells per second (default 2000), CELLOG_BENCH_BATCH
// how many of them a request carries (default 1), CELLOG_BENCH_SECONDS how long
// (default 20), CELLOG_BENCH_FLAGS more flags of `cellog dev`. The
// rate is an open loop: a slow answer does not slow the next put down.
package latency
