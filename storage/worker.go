package storage

import "time"

// Sighting is a worker as one server knows it.
type Sighting struct {
	// Name is the worker process's own, a random UUID. Who knows it may
	// forward cells to the worker: it is never logged.
	Name string
	// URL is the base URL of the worker's HTTP API.
	URL string
	// Node is the server, cluster/node.
	Node string
	// Beat changes with each announcement. It is the server's clock: compare
	// it only with the same server's earlier ones, for equality.
	Beat time.Time
}
