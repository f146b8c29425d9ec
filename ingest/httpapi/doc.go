// Package httpapi turns HTTP into calls, and errors into stable codes and
// statuses.
//
//	api, err := httpapi.New(httpapi.Config{Ingest: in, Store: store, Final: final})
//	srv := httpapi.NewServer(api, "127.0.0.1:8080")
//	err = srv.Start(ctx)
//
// # Promises
//
//  1. Every error is an RFC 9457 problem document with a code of the table
//     that docs/errors.md lists.
//  2. The answer to a put is 201, 200 or 409 only when storage has said so;
//     429 and 503 mean that nothing was kept, 504 that the outcome is unknown.
//  3. A request that is too large, too deep, malformed or of the wrong type is
//     refused before anything of it is stored, and its connection lives on if
//     the client sends no more than 64 MiB past the limit.
//  4. A request body is inflated through its limit: a gzip bomb costs no more
//     memory than an honest body. The memory of all request bodies is bounded.
//  5. A panic in a handler is a 500, is logged, and harms no other request.
//  6. /openapi.json is made from the table that routes requests.
//
// Not promised: that an answer arrives. A client that got none puts the same
// cell again.
//
// When storage is down, puts answer 503 or 504, reads 503; reads whose master
// is out of reach are answered by a minion and marked stale. When nobody knows
// what is final, the log answers 503 final_unknown unless provisional=1.
package httpapi
