// Package mysqlconn opens connection pools to MySQL and MariaDB, and says what
// a server's error means. It is the only home of the MySQL driver: others use
// database/sql and the IsX functions.
//
//	db, err := mysqlconn.Open(mysqlconn.Config{Addr: "127.0.0.1:3306", User: "worker", Password: p})
//	…
//	if mysqlconn.IsDuplicate(err) { … }
//
// # Promises
//
//  1. Every session is set the same way: utf8mb4, arguments put into the
//     statement's text by the client (one round trip a statement), DATETIME read
//     as UTC, packets up to 1 GiB, and the settings of Config.Session.
//  2. A pool never keeps a session of a server that turned read-only: the
//     refused statement's session is thrown away and the error is lost
//     (IsLost), unless Config.KeepReadOnly is set.
//  3. Passwords are in no error and no log.
//
// Not promised: that a statement whose error IsLost did not happen. It may have
// been carried out, a COMMIT too.
//
// # Failures
//
// The server is gone or hangs: dialing ends after Config.DialTimeout, a
// statement when its context ends (or after ReadTimeout); both are errors for
// which IsLost or the context says why. Open itself contacts nobody.
package mysqlconn
