package feed

import (
	"errors"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
)

// ErrTaken is the cause of a handler's context when its partition went to
// another member before the handler returned.
var ErrTaken = errors.New("the partition went to another member of the group")

// HoleError stops a partition: a cell is missing between two that follow each
// other in it. Nothing after the hole was handed out.
type HoleError struct {
	Partition kafka.Partition
	Offset    int64
	Cell      string
	Column    string
	Want, Got cellog.Sequence
}

// Error says where the hole is and what would show it to be real.
func (e *HoleError) Error() string {
	return fmt.Sprintf("%s offset %d: cell %s is number %d of column %s in its shard, but %d comes next: %d cells are missing here; compare with `cellog verify`, and restart the consumer when the topic is whole",
		e.Partition, e.Offset, e.Cell, e.Got, e.Column, e.Want, e.Got-e.Want)
}

// RecordError stops a partition: a record in it is no cell.
type RecordError struct {
	Partition kafka.Partition
	Offset    int64
	Err       error
}

// Error says which record it is and what is wrong with it.
func (e *RecordError) Error() string {
	return fmt.Sprintf("%s offset %d is not a cell: %v", e.Partition, e.Offset, e.Err)
}

// Unwrap returns what the codec said.
func (e *RecordError) Unwrap() error { return e.Err }

// PanicError is a handler's panic, as the failure that it counts as.
type PanicError struct {
	Value any
	Stack []byte
}

// Error holds the value and the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v\n%s", e.Value, e.Stack) }
