package mysqlreplica

import "errors"

var (
	// ErrStopped is returned when a wait cannot end well any more: replication
	// is not set up, or a thread of it has stopped. The text has the server's
	// reason, if it gave one.
	ErrStopped = errors.New("mysqlreplica: replication has stopped")
)
