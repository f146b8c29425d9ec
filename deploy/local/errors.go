package local

import "errors"

var (
	// ErrInUse is returned when another process uses the data directory.
	ErrInUse = errors.New("deploy/local: data directory in use")
	// ErrMismatch is returned when the data directory was made with other
	// clusters, minions or another flavour than are asked for.
	ErrMismatch = errors.New("deploy/local: data directory made otherwise")
)
