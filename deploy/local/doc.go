// Package local runs the private servers of cellog dev as child processes:
// storage clusters of one MySQL or MariaDB master and its minions, and the
// embedded Kafka broker.
//
//	l, err := local.Start(ctx, local.Config{DataDir: "cellog-data"})
//	defer l.Stop(context.Background())
//	l.Clusters(); l.KafkaAddrs(); l.Accounts()
//
// # Promises
//
//  1. When the first Start in a directory returns, each cluster's master is
//     writable, its minions are read-only and replicate by GTID, and every
//     account can log in everywhere. Later ones end likewise, unless
//     Config.LeaveReadOnly says that the caller sees to it: then a node is never
//     made writable here, nor made to follow another one.
//  2. A restart finds the data, accounts, passwords, masters (see SetMaster) and,
//     unless somebody else took them, the ports that were there before; after
//     kill -9 of everything, too: nothing acknowledged is lost, and replication
//     goes on.
//  3. No server outlives this process, even when that is killed with -9.
//  4. One process at a time uses a data directory: the next one gets ErrInUse.
//  5. A server that ends by itself is started again on its port until it is up,
//     with a wait between the attempts; Ready says so meanwhile.
//  6. A node whose directory was removed comes back empty, with the accounts,
//     read-only, and follows none: it can be rebuilt (internal/mysqlreplica), and
//     nobody takes it for what it was. Without LeaveReadOnly, which is for whoever
//     rebuilds, that holds until its next restart.
//  7. Passwords are random and only in DataDir/secrets, mode 0600; servers listen
//     on 127.0.0.1.
//
// Not promised: that a machine's loss loses nothing: all is on one disk. It is for
// development and trials.
//
// # Files
//
//	lock             held while a process uses the directory; its pid
//	topology.json    flavour, clusters, nodes, masters, ports
//	secrets          the accounts, mode 0600
//	clusters/C/N/    a server's directory, see internal/mysqlserver
//	kafka/           the broker's, see internal/devbroker
//
// # Failures
//
// No server found: the error says how to install one. A server that ends by
// itself is logged and brought back, the others go on; one that cannot come up,
// on a full disk for example, is tried again every ten seconds, and the log has
// its reason each time. A server that only hangs is left alone: nobody can tell
// it from a slow one. A minion whose replication cannot start fails Start with
// the server's reason (with LeaveReadOnly, it is the caller's to see). A port
// that somebody else took is another one from then on: with LeaveReadOnly, the
// caller re-points the minions of that server.
package local
