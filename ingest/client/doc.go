// Package client is the Go client of cellog's HTTP API.
//
//	c, err := client.New(client.Config{URLs: []string{"http://127.0.0.1:8080"}})
//	res, err := c.Put(ctx, "trips", cellog.Put{Key: key, Body: body})
//	switch {
//	case client.IsConflict(err): // another body stands; res says where
//	case client.IsUnknown(err):  // it may be stored or not: put the same cell again
//	}
//
// It promises:
//
//  1. A put is retried only as the very same put, so retrying can never store
//     it twice. 429, 503, 504 and broken connections are retried, with
//     backoff and jitter, on the other workers too, until the budget or the
//     context ends.
//  2. IsUnknown is true whenever any attempt may have stored the cell and no
//     later one said what stands: the last answer alone does not decide.
//  3. The answers to a batch are in the order of its puts, each put with its
//     own outcome; only the unfinished ones are sent again.
//  4. Given the number of shards, all puts of a shard go to one worker while
//     it is well: only speed depends on it.
//
// It does not promise a total order among concurrent puts: the shard gives
// that. A Client is safe for any number of goroutines and keeps one connection
// for each concurrent call.
//
// When a worker is down, calls go to the next one after one failed attempt. One
// that gave no answer is asked last for 1 to 30 s.
// When all are, calls fail with the last error after the budget.
package client
