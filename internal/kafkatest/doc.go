// Package kafkatest gives tests a Kafka broker.
//
//	b := kafkatest.Start(t)
//	prefix := kafkatest.Prefix(t) // for topics, groups and transactional ids
//	client(b.Addrs(), prefix+"trips.BASE")
//
// By default each Start is a broker of the test's own in this process (kfake, with
// a data directory). With CELLOG_TEST_KAFKA=real it is Apache Kafka, one per
// test binary since a JVM starts slowly: CELLOG_KAFKA_DIR (or the nearest
// .cache/kafka, where tools/get-kafka.sh puts it) has the start script.
//
// # Promises
//
//  1. Restart keeps the data and the address.
//  2. A broker ends with the test binary, however that ends; Main also looks for
//     leaked goroutines.
//  3. A missing Apache Kafka fails the test, with the command that gets one.
//
// Not promised: that a test may Stop or Restart Apache Kafka while other tests of
// the binary use it: such tests must not be parallel.
//
// # Failures
//
// Everything fails the test at once; for Apache Kafka with the end of its log.
package kafkatest
