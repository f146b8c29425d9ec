// Package cellog holds the words that all parts of cellog share: what a cell
// is, where it lives, and how the numbers that order it are called.
//
// A cell is (row_key, column_name, ref_key) -> JSON body. It is immutable. A
// row_key lives in one shard for ever; in that shard the cell has a place,
// its added_id: 1, 2, 3, … without holes, in commit order, which is also the
// order of the cell's records in Kafka.
//
// The package imports the standard library and uuid only, and every other
// package may import it. Its placement functions (ShardOf, PartitionOf) are
// promises: rows were stored by them, so their literal vectors in the tests
// can never change.
package cellog
