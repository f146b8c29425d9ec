package record

import (
	"errors"
	"fmt"
)

// ErrNotACell is in the chain of every error of Decode: the record was not
// written by Encode, or not by a version that this one understands.
var ErrNotACell = errors.New("not a cell's record")

func notACell(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrNotACell}, args...)...)
}
