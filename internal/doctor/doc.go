// Package doctor inspects the servers and brokers that cellog runs on, and
// says of each setting that breaks a promise what it costs and how to mend it.
//
//	findings := doctor.MySQL(ctx, node)       // one server
//	findings = append(findings, doctor.Cluster("c0", servers)...)
//	findings = append(findings, doctor.Machines(all)...) // and Sources, OpenedNode, Terms, Shards
//	findings = append(findings, doctor.Kafka(ctx, cfg, topics)...)
//
// A finding is Bad where a promise breaks (cells may be lost, doubled, or not
// reach Kafka), Warn where only speed or comfort suffers, OK otherwise. A
// server that does not answer is a Bad finding of its own; the others are
// inspected all the same.
//
// It only reads, but for one thing: to learn whether the worker's account may
// change cells, it tries an UPDATE and a DELETE that match no row.
//
// It cannot see what a server will do after a restart: settings that were made
// with SET GLOBAL look as well as those in a configuration file.
package doctor
