// Package demo is a city in fast motion on a running cellog: riders, drivers
// and trips of a seed, a billing trigger, a flaky card gateway, and the proof
// at the end that every trip was charged exactly once.
//
// A trip's end is a BASE cell, put over HTTP. The billing trigger, a process
// of its own, charges the fare and writes each attempt down as a STATUS cell.
// Notes and fare adjustments come late. In the middle the billing process is
// killed, between a charge and its STATUS. An index answers "this driver's
// trips in this city since". When the time is over, the load stops, the stream
// drains, the indexes, Kafka and the entity tables are compared, and then the
// gateway's own books with the trips and their STATUS cells.
//
// Promises: the same seed and the same number of trips give the same cells in
// BASE, NOTES and FARE_ADJUSTMENT and the same declined cards, whatever
// breaks; Run returns a Report whose OK is false if anything was lost, done
// twice or not in time.
//
// Not promised: speed. Everything runs on one machine, and the lag around a
// kill is the broker's session timeout.
//
// When the workers are away, puts are retried until they are answered. When
// the gateway refuses or answers nothing, the trigger tries the trip again
// with the same key. When the billing process ends, it is started again; one
// that ends at once, again and again, ends the demo.
package demo
