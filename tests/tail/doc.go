// Package tail holds the tests of a tailer made of real parts: a MySQL or
// MariaDB server, cdc/binlog, cdc, cdc/publish, and a Kafka broker. They crash
// it, freeze it, take its binlog and its topics away, and then count what a
// reader of committed records saw.
package tail
