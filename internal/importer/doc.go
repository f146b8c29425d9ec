// Package importer turns rows of CSV and JSONL files into puts, and puts them.
//
//	src, err := importer.NewCSV(file, mapping)
//	stats, err := importer.Run(ctx, src, importer.Config{Datastore: "trips", Put: c.PutBatch, Report: …})
//
// It promises:
//
//  1. The same file with the same mapping makes the same cells, byte for
//     byte, so an import that was interrupted is simply run again: what is
//     already there is counted as same.
//  2. Numbers are carried over as they are written, never through a float.
//  3. A row that cannot be mapped, and one that conflicts or is refused, is
//     reported with its line number; the others are imported.
//  4. Memory is bounded by the batches in flight and one row, whatever is in
//     the file: a row of more than 64 MiB is refused.
//
// It does not promise the order of added_ids among rows: batches travel
// concurrently. So of two rows of a file under one key and with different
// bodies either may stay; the other one conflicts. A line end inside a quoted
// CSV field is a line feed in the body, whatever it is in the file.
//
// When the workers are away, the put function retries until its own budget
// ends; then Run stops with its error, and running it again goes on.
package importer
