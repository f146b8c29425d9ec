package indexdef

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Error is one mistake in a definition. Load and Parse return all of a file,
// joined; errors.As finds the first, All finds every one.
type Error struct {
	// File is the name that the caller gave.
	File string
	// Line and Column are where the mistake begins, from 1; Column counts
	// characters. Both are 0 if the file has no contents.
	Line, Column int
	// Message says what is wrong and what was expected.
	Message string
}

// Error returns file:line:column: message.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// All returns every *Error in err's tree, in the order of their places.
func All(err error) []*Error {
	var all []*Error
	var walk func(error)
	walk = func(err error) {
		if e, ok := err.(*Error); ok {
			all = append(all, e)
			return
		}
		switch u := err.(type) {
		case interface{ Unwrap() []error }:
			for _, e := range u.Unwrap() {
				walk(e)
			}
		case interface{ Unwrap() error }:
			walk(u.Unwrap())
		}
	}
	walk(err)
	return all
}

// joined returns the errors of one file in the order of their places.
func joined(errs []*Error) error {
	slices.SortStableFunc(errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	list := make([]error, len(errs))
	for i, e := range errs {
		list[i] = e
	}
	return errors.Join(list...)
}
