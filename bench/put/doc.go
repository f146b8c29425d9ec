// Package put measures puts, on one server with one set of settings: 256
// clients over HTTP, through ingest's group commit, against 256 connections
// that insert the same rows with plain autocommit statements into a table with
// an auto-increment id. It holds benchmarks only:
//
//	go test ./bench/put -bench . -benchtime 20000x
//
// The last line is the ratio of the two. Each side gets the same number of
// rows, bodies of the same size, and the same number of clients; the clients
// run on the same machine as the server.
package put
