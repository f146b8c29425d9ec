// Package mysqlserver runs one private MySQL or MariaDB server as a child
// process, for cellog dev and for tests.
//
//	srv, err := mysqlserver.Start(ctx, mysqlserver.Config{Dir: dir, ServerID: 1})
//	defer srv.Stop(context.Background())
//	db, err := srv.Open("") // root, through the socket
//
// # Promises
//
//  1. Start returns when the server answers, read-only (read_only=ON; MySQL also
//     super_read_only=ON): whoever opens a node sets read_only=OFF.
//  2. The server keeps what it acknowledged over kill -9: sync_binlog=1,
//     innodb_flush_log_at_trx_commit=1. A new Start on the same Dir recovers it,
//     and replication, where it was set up, goes on by GTID.
//  3. The server dies with this process, also when this one is killed with -9:
//     the kernel kills it (Pdeathsig), so no orphan keeps the directory.
//  4. One directory has one server: a second Start fails with ErrInUse, while a
//     server that is just dying is waited for.
//  5. The flavour is what the binary's --version prints, never its name (Debian's
//     mysqld is MariaDB).
//  6. Nothing but the socket lets anyone in: root without a password, in a
//     directory of mode 0700. Accounts for TCP are the caller's business. The
//     server listens on 127.0.0.1 only.
//
// Not promised: any other system than Linux, tuning for production, and that a
// port given as 0 is the same after a restart.
//
// # How a start is fast
//
// The data directory is copied from a template that is made once per binary and
// version in the user's cache directory (Config.TemplateDir), under a lock and
// with a rename at the end, so parallel processes are safe. All servers made
// from one MySQL template share its RSA key pair, which only hides passwords on
// the way over 127.0.0.1.
//
// # Failures
//
// No server of the wanted flavour: ErrNotFound with the command that installs
// one. The server does not come up: the error holds the end of its error log
// (Dir/error.log). The server dies later: Done is closed and Err says how.
package mysqlserver
