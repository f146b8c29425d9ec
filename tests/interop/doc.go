// Package interop holds the checks that any Kafka client can read cellog's
// topics: kcat, confluent-kafka, Java's kafka-clients, kafka-python and
// aiokafka read a topic that holds committed and aborted cells, and must see
// exactly the committed ones, with key, value, time and headers. And Java's
// default partitioner and librdkafka's murmur2_random must choose the
// partition that cellog does, so that other topics keyed by row_key are
// co-partitioned with ours.
//
// The tests have the build tag interop, because they install the clients (into
// .cache/interop, by pip and Maven) and need kcat, a JDK and Debian's
// python3-kafka (tools/install-deps.sh clients). CELLOG_TEST_KAFKA=real runs
// them on Apache Kafka:
//
//	go test -tags interop ./tests/interop
package interop
