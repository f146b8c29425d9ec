// Package ingest checks a cell and answers only when storage has it.
//
//	in, err := ingest.New(ingest.Config{Store: store})
//	stored, err := in.Put(ctx, "trips", put)
//
// A put is checked, its body encoded, and queued for its shard. One goroutine
// per shard that has work writes what is queued in one transaction; what
// arrives meanwhile travels in the next one. Nothing waits for a timer, and a
// shard without work has neither goroutine nor connection.
//
// # Promises
//
//  1. A nil error means that the store answered (created, same or conflict) or,
//     with a Buffer, that the put is durable elsewhere while its primary gives
//     no answer (buffered).
//  2. Any error but one with code outcome_unknown means that nothing was kept.
//     A caller whose context ends while its put is queued takes it back
//     (ErrDeadline); while it is being written it gets ErrOutcomeUnknown.
//  3. Puts of one shard are written in the order in which they were queued,
//     while the shard's home stays.
//  4. Queues are bounded by bytes, in all and per shard: ErrOverloaded comes
//     before anything is kept.
//  5. With Peers, cells of another worker's shard go to that worker, one hop.
//     What it does not answer in ForwardTimeout, or cannot write, is written
//     here; promise 2 holds over both.
//  6. Stop refuses new puts and returns when all accepted ones are answered.
//
// Not promised: an order between puts that are in flight at the same time from
// different callers, other than that the shard gives them one.
//
// When storage is down and there is no Buffer, or it fails too, the errors reach
// the callers as they are; queues fill up to their bounds and then refuse.
package ingest
