package mysqlreplica

import "errors"

var (
	// ErrStopped is returned when a wait cannot end well any more: replication
	// is not set up, or a thread of it has stopped. The text has the server's
	// reason, if it gave one.
	ErrStopped = errors.New("mysqlreplica: replication has stopped")
	// ErrDiverged is returned, with ErrStopped, when the server's reason proves
	// that it differs from its source, or that the source cannot give it what it
	// lacks: only a Rebuild helps.
	ErrDiverged = errors.New("mysqlreplica: the server has diverged from its source")
	// ErrRefused is returned by Rebuild when it may not copy the one server onto
	// the other. Nothing was changed; the text says what to do.
	ErrRefused = errors.New("mysqlreplica: rebuild refused")
	// ErrBusy is returned by Rebuild when the server to copy could not be locked
	// for a moment, or its tables changed in that moment. Nothing was changed:
	// repeat it later.
	ErrBusy = errors.New("mysqlreplica: the server to copy is busy")
)
