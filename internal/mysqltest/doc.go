// Package mysqltest gives tests real MySQL or MariaDB servers.
//
//	func TestMain(m *testing.M) { mysqltest.Main(m) } // stops the shared server, looks for leaked goroutines
//
//	func TestX(t *testing.T) {
//		n := mysqltest.Server(t)         // one per test binary
//		n.CreateShards(t, "trips", 16)   // trips_0000 …, dropped when the test ends
//		db := n.DB(t, "trips_0000")      // as admin
//	}
//
// CELLOG_TEST_FLAVOUR (mariadb, the default, or mysql) chooses the flavour; a
// test fails, and is not skipped, when that flavour is not there. CELLOG_MYSQLD
// is the path of a server's binary.
//
// # Promises
//
//  1. The shared server starts on first use and ends with the process, whatever
//     ends it. Its directory is removed by Main or by a later test run.
//  2. Meta and CreateShards leave nothing behind. On the shared server a test
//     that uses them waits until the test before it is done, so they may be
//     used in parallel tests, which then run one after the other; Start gives a
//     test a server of its own.
//  3. Nodes and accounts are as deploy/local makes them: masters writable,
//     minions read-only, GTID, durable, each account with its role's rights.
//
// # Failures
//
// Everything fails the test at once, with what the server said.
package mysqltest
