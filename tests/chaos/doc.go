// Package chaos tests that every answer stays true while things break: it
// injects seeded faults into a whole cellog under load, heals them, and holds
// every answer that a client got against what is stored.
//
//	make chaos SEED=7 DURATION=120
//
// # What runs
//
// Two storage clusters of private servers, c1 with two minions and c2 with one,
// a broker, and every role as a process of its own: three workers, two tailers,
// an indexer and a trigger. Between each of them and each server, broker or
// other worker, and between a minion and its master, there is a proxy of the
// test's own (link), which can cut, delay or hold what passes.
//
// # Faults
//
// A fault is a row of the table faults: a kind, and a function that injects it,
// keeps it on, heals it, and returns an error if it did not show that the fault
// took effect. They come one after another, in a seeded order in which each
// kind comes before any comes twice, with a control among them that injects
// nothing. To add one, add a row; rig has what it
// needs: processes to freeze and kill, links to hold, servers to ask. A fault
// that takes a server away for good has to tell rig what is no longer a live
// host (rig.gone). One that replaces a master does it as an operator would, by
// cellog cluster promote and rejoin, and everything else asks rig who is master
// now. One that moves a shard tells rig.owners, which everything else asks for the
// cluster of a row. One that acts on a set of processes takes all the links
// between it and others (rig.between, as cutOffMaster does), and several
// processes at once.
//
// # What must hold afterwards
//
//   - every cell answered 201 or 200 stands with that body, and is once in Kafka;
//   - every cell answered 202 too, or it is in rejected_cells with its winner;
//   - no key has two bodies that were answered 201 or 200;
//   - nothing of which every attempt was answered 429 or 503 is anywhere;
//   - each shard's log is 1..n, the same on every live server;
//   - Kafka has what MySQL has, in the same order, and nothing else;
//   - the trigger saw every cell, in order per row; the index has converged.
//
// TestPlanted breaks cellog on purpose, and fails if that is not found.
//
// Set CELLOG_TEST_FLAVOUR=mysql for MySQL instead of MariaDB servers and
// CELLOG_TEST_KAFKA=real for Apache Kafka instead of the embedded broker. Full
// disks need root (a tmpfs is mounted), clock steps libfaketime; where they are
// not to be had, the run says that these kinds are left out.
package chaos
