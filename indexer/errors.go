package indexer

import (
	"errors"
	"fmt"
	"net/http"
)

// ErrDefinition is returned when an index's tables were made from another
// definition. Give the new definition a new table name.
var ErrDefinition = errors.New("the index exists with another definition; give the changed one a new name (its table), or put the old one back")

// ErrMoved is returned by Tables when a shard has gone to another server or epoch
// since Ensure: what was applied may not be there.
var ErrMoved = errors.New("a shard is not where it was")

// Error is a query that was refused or could not be answered. It carries what the HTTP API answers.
type Error struct {
	code   string
	status int
	text   string
}

// Error says which parameter is wrong and what is wanted.
func (e *Error) Error() string { return e.text }

// Code returns the stable code of the problem document.
func (e *Error) Code() string { return e.code }

// Status returns the HTTP status.
func (e *Error) Status() int { return e.status }

// The codes of queries that got no answer.
const (
	CodeUnknownIndex      = "unknown_index"
	CodeMissingShardField = "missing_shard_field"
	CodeUnknownParameter  = "unknown_parameter"
	CodeBadFilter         = "bad_filter"
	CodeBadSelect         = "bad_select"
	CodeBadLimit          = "bad_limit"
	CodeBadCursor         = "bad_cursor"
	CodeBadRead           = "bad_read"
	CodeIndexNotMade      = "index_not_made"
	CodeUnavailable       = "unavailable"
)

// Unavailable returns the error of a query that no node could answer.
func Unavailable(ix *Index) error {
	return &Error{code: CodeUnavailable, status: http.StatusServiceUnavailable,
		text: fmt.Sprintf("no node could answer for the index %s; try again", ix)}
}

// NotMade returns the error of a query whose index has no tables yet, because
// no indexer has run with its definition.
func NotMade(ix *Index) error {
	return &Error{code: CodeIndexNotMade, status: http.StatusServiceUnavailable,
		text: fmt.Sprintf("the index %s has no tables yet: an indexer with its definition makes them", ix)}
}

func refuse(code, format string, args ...any) *Error {
	status := http.StatusBadRequest
	if code == CodeUnknownIndex {
		status = http.StatusNotFound
	}
	return &Error{code: code, status: status, text: fmt.Sprintf(format, args...)}
}
