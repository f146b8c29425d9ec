// Package triggers runs registered functions on every cell of a column, in
// order per row, at least once.
//
//	rt, err := triggers.New(triggers.Config{Brokers: []string{"127.0.0.1:9092"}})
//	err = rt.On("trips", "BASE", "billing", func(ctx context.Context, c cellog.Cell) error {
//		return charge(ctx, c)
//	}, triggers.FromZero())
//	err = rt.Run(ctx) // until ctx ends
//
// Promises:
//
//  1. A function sees every cell of its column at least once, over crashes of
//     this process and others joining and leaving; a cell is finished only
//     when the function returned nil.
//  2. It sees a row's cells in the order of the log, one after the other, the
//     next one only after it returned nil for the one before. On one column
//     that is the column's order; a trigger on AllColumns sees the whole
//     row's. Rows come in parallel.
//  3. A failing cell, panics included, holds up its row only, and is tried
//     again at growing distances for as long as it takes. Other rows of its
//     partition go on until Window cells lie behind it; then the partition
//     waits. No cell is dropped.
//  4. Generation gives a fencing token: a later holder of the partition has a
//     higher one.
//
// Not promised: exactly once. What a function does may have been done before:
// give each effect a key of its own (row_key/ref_key) and let the other side
// ignore a known one.
//
// When Kafka is away, nothing comes; the runtime joins again by itself. When
// the function's own neighbour is away, each row waits for it; nothing is
// lost. When the topic does not exist, the trigger waits for the column's
// first cell. A hole in the topic, or records that expired, stop the partition
// before anything after it is handed out: see Err.
//
// Underneath, Subscriber is a watermill subscriber that passes watermill's own
// suite; it can be used with any watermill router.
package triggers
