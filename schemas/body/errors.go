package body

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// The codes of Error. They are stable: HTTP answers carry them.
const (
	// CodeEmpty is returned when there is no JSON value at all.
	CodeEmpty = "empty_body"
	// CodeInvalidJSON is returned when the text is not one RFC 8259 value.
	CodeInvalidJSON = "invalid_json"
	// CodeDuplicateKey is returned when an object has the same key twice.
	CodeDuplicateKey = "duplicate_key"
	// CodeInvalidUTF8 is returned when the text is not UTF-8.
	CodeInvalidUTF8 = "invalid_utf8"
	// CodeTooDeep is returned when containers nest deeper than Limits.Depth.
	CodeTooDeep = "too_deep"
	// CodeTooLarge is returned when the text is longer than Limits.Bytes, or
	// what is stored would come out longer than the caller's cap.
	CodeTooLarge = "body_too_large"
	// CodeCorrupt is returned when stored bytes are not what Encode writes.
	CodeCorrupt = "corrupt_body"
	// CodeUnknownFormat is returned when the format byte of stored bytes is
	// one that this version does not know.
	CodeUnknownFormat = "unknown_format"
)

// Error is the type of all errors of this package. The first six codes are the
// client's mistakes (HTTP 400, and 413 for body_too_large); corrupt_body and
// unknown_format are the store's.
type Error struct {
	// Code is one of the constants above.
	Code string
	// Offset is the byte of the JSON text, or of the payload for
	// corrupt_body, at or after which the mistake is; -1 if there is none.
	Offset int64
	// Pointer is the JSON pointer (RFC 6901) of the value with the mistake, at
	// most 200 bytes, or empty. It holds keys of the body: show it to the
	// client that sent the body, do not log it.
	Pointer string

	detail string
}

// Error returns the code, the place and what was expected; never a part of the
// body longer than one character.
func (e *Error) Error() string {
	if e.Offset < 0 {
		return e.Code + ": " + e.detail
	}
	return fmt.Sprintf("%s at byte %d: %s", e.Code, e.Offset, e.detail)
}

// Detail returns the text of the error without code and place.
func (e *Error) Detail() string { return e.detail }

// CodeOf returns the Code of the *Error in err's chain, or "".
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func newError(code string, offset int, format string, args ...any) *Error {
	return &Error{Code: code, Offset: int64(offset), detail: fmt.Sprintf(format, args...)}
}

func corrupt(offset int, detail string) *Error {
	return &Error{Code: CodeCorrupt, Offset: int64(offset), detail: detail}
}

// syntaxError turns an error of the jsontext decoder into ours.
func syntaxError(err error) *Error {
	var s *jsontext.SyntacticError
	if !errors.As(err, &s) {
		return newError(CodeInvalidJSON, -1, "%v", err)
	}
	e := &Error{Code: CodeInvalidJSON, Offset: s.ByteOffset, Pointer: cutPointer(string(s.JSONPointer))}
	switch {
	case errors.Is(s.Err, jsontext.ErrDuplicateName):
		e.Code, e.detail = CodeDuplicateKey, "an object has this key twice"
	case s.Err == nil:
		e.detail = "not valid JSON"
	default:
		e.detail = cutDetail(s.Err.Error())
	}
	return e
}

const maxPointer = 200

func cutPointer(p string) string {
	if len(p) <= maxPointer {
		return p
	}
	n := maxPointer
	for n > 0 && !utf8.RuneStart(p[n]) {
		n--
	}
	return p[:n]
}

// cutDetail keeps a decoder's message as it is, unless it quotes more of the
// body than one character.
func cutDetail(s string) string {
	const quote = "`"
	i := strings.Index(s, quote)
	j := strings.LastIndex(s, quote)
	if i >= 0 && j > i {
		return strings.TrimSpace(s[:i]) + s[j+1:]
	}
	return s
}
