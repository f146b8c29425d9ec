// Package kafka is the one home of the Kafka client (franz-go): topics,
// positions, fencing, producing and consuming. None of the client's types or
// errors leave it.
//
// The producing half serves the tailer:
//
//	p, err := kafka.OpenProducer(ctx, kafka.ProducerConfig{Config: c, TransactionalID: id}) // fences older ones
//	err = p.Begin(ctx)
//	err = p.Send(ctx, kafka.NewMessage(topic, partition, rec))
//	err = p.Flush(ctx)   // every record is there, or the error says why not
//	err = p.Commit(ctx)
//
// Promises:
//
//  1. Commit never commits a transaction of which a record failed: every
//     promise is flushed and checked first.
//  2. After any error a Producer is of no more use; Close it and open a new
//     one. It never re-initialises behind the caller's back in a way that
//     would let a fenced producer go on.
//  3. Every error that a caller may decide by carries a mark of errors.go.
//  4. Readers say what they read: committed records only, from an offset to an
//     end that was asked for, control records never.
//
// Not promised: that Commit's error means "not committed". An answer may have
// been lost; who needs to know reads the positions topic again.
//
// When Kafka is away, opening fails, and calls on what is open wait until their
// context ends: the client retries underneath. A transaction that stays open for longer than its timeout (10 s
// at most) is aborted by the broker, and the producer learns it as ErrFenced.
//
// Traps that this package keeps away from its callers: EndTransaction without
// a flush returns nil and drops records; so does the first EndTransaction of a
// client that has not yet stored the metadata by which it sent (see settle); a transaction begun before
// the markers of the last one are written meets the broker's 20 ms retry; a constant retry backoff of
// 1 ms uses up all retries at a broker that is starting; message timestamps
// ahead of the broker's clock wedge a stream unless the topic allows them; an
// idempotent producer does not fence.
package kafka
