package ingest

import (
	"errors"

	"github.com/cellog/cellog/schemas/body"
)

// Coder is an error with a stable code, which the HTTP API shows. Errors of
// storage have one too.
type Coder interface {
	error
	Code() string
}

type coded struct{ code, text string }

func (e *coded) Error() string { return e.text }
func (e *coded) Code() string  { return e.code }

// CodeOf returns an error's stable code, "" if it has none.
func CodeOf(err error) string {
	if c := body.CodeOf(err); c != "" {
		return c
	}
	var c Coder
	if errors.As(err, &c) {
		return c.Code()
	}
	return ""
}

// Codes of the store's errors that are looked at here.
const (
	codeUnknown     = "outcome_unknown"
	codeUnavailable = "unavailable"
)

var (
	// ErrOverloaded is returned when a queue is full; nothing was kept.
	ErrOverloaded error = &coded{"overloaded", "too much is queued, nothing was kept; put the cell again later"}

	// ErrStopped is returned by puts after Stop; nothing was kept.
	ErrStopped error = &coded{"stopping", "this worker is stopping, nothing was kept; ask another one"}

	// ErrDeadline is returned when the caller's context ended while its put
	// was still queued; nothing was kept.
	ErrDeadline error = &coded{"deadline", "the time was up before the put's turn came, nothing was kept"}

	// ErrOutcomeUnknown is returned when the caller's context ended while its
	// put was being written.
	ErrOutcomeUnknown error = &coded{codeUnknown, "the time was up while the put was being written; put the same cell again to learn its outcome"}

	// ErrColumn is wrapped by the error of an illegal column name.
	ErrColumn error = &coded{"bad_column", "illegal column name"}

	// ErrTraceParent is returned for a traceparent that is not of the W3C form.
	ErrTraceParent error = &coded{"bad_traceparent", "traceparent: want 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, none of the ids all zero"}
)
