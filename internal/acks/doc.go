// Package acks keeps a journal of what clients were answered, outside the
// system, and holds it against what is stored.
//
//	j, err := acks.Create(file)
//	err = j.Append(acks.Answer{Status: 201, Key: key, Body: body})
//	…
//	report, err := acks.Check(ctx, file, store)
//
// A journal is a file of JSON lines: status, row_key, column, ref_key, body.
// Status is that of one attempt at a put, 0 if no answer came.
//
// It promises that the report counts, each key by itself:
//
//   - lost: a body answered 201 or 200 while no cell stands, and one answered
//     202 that neither stands, nor waits, nor was rejected;
//   - other body: 201 or 200 while another body stands;
//   - two bodies: two different bodies answered 201 or 200;
//   - ghosts: a body stands, or was rejected later, of which every attempt was
//     answered 429 or 503;
//   - unnamed: answered 202 and rejected, by a record that does not name the
//     body that stands;
//   - waiting: answered 202, not put in yet: not a fault, but not the end.
//
// An Append that returned is on the disk. It does not look at Kafka: compare
// that with what is stored by internal/verify.
package acks
