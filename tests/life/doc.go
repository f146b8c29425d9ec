// Package life tests cellog as its users meet it: the binary as a child
// process, cells in over HTTP, out of Kafka, triggers and indexes, with kill -9
// in between.
//
// The input is real: the New York taxi trips of testdata. Set
// CELLOG_TEST_FLAVOUR=mysql for MySQL instead of MariaDB servers and
// CELLOG_TEST_KAFKA=real for Apache Kafka instead of the embedded broker.
package life
