package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Problem is an RFC 9457 problem document that a worker answered.
type Problem struct {
	// Status is the HTTP status.
	Status int `json:"status"`
	// Code is the stable name of what went wrong; docs/errors.md lists all.
	Code string `json:"code"`
	// Title and Detail are for people.
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

// Error returns the code with the words for people.
func (p *Problem) Error() string {
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	if p.Code == "" {
		return fmt.Sprintf("HTTP %d: %s", p.Status, text)
	}
	if strings.HasPrefix(text, p.Code) { // words that name the code already
		return fmt.Sprintf("%s (HTTP %d)", text, p.Status)
	}
	return fmt.Sprintf("%s (HTTP %d): %s", p.Code, p.Status, text)
}

// UnknownError is returned when the cell may be stored or not: an attempt was
// sent, and nobody said what became of it. Putting the same cell again is safe
// and tells.
type UnknownError struct{ Last error }

// Error says so, with the last attempt's error.
func (e *UnknownError) Error() string {
	return "outcome unknown, put the same cell again to learn it: " + e.Last.Error()
}

// Unwrap returns the last attempt's error.
func (e *UnknownError) Unwrap() error { return e.Last }

// IsConflict reports that another body stands under the key.
func IsConflict(err error) bool { return hasStatus(err, 409) }

// IsNotFound reports that there is no such cell, datastore or index.
func IsNotFound(err error) bool { return hasStatus(err, 404) }

// IsUnknown reports that the cell may be stored or not.
func IsUnknown(err error) bool {
	var u *UnknownError
	return errors.As(err, &u)
}

// IsRefused reports that the request itself was wrong (any other 4xx but
// 429): the same request will be refused again.
func IsRefused(err error) bool {
	var p *Problem
	return errors.As(err, &p) && p.Status >= 400 && p.Status < 500 && p.Status != 409 && p.Status != 429
}

func hasStatus(err error, status int) bool {
	var p *Problem
	return errors.As(err, &p) && p.Status == status
}

// retryable is the one place that decides whether the same request may be sent
// again, and whether it may have done its work already.
func retryable(status int) (again, unknown bool) {
	switch status {
	case 429, 503:
		return true, false // nothing was kept (G9)
	case 504:
		return true, true // outcome_unknown
	case 502:
		return true, true // a proxy between us lost the answer
	case 500:
		return false, true // a bug there: repeating it does not help
	case 408:
		return true, false // the request did not arrive whole
	}
	return false, false
}

// problemOf reads a problem document, or makes one from whatever came instead.
func problemOf(status int, contentType string, body []byte) *Problem {
	p := &Problem{}
	if strings.Contains(contentType, "json") && json.Unmarshal(body, p) == nil && (p.Code != "" || p.Title != "" || p.Detail != "") {
		p.Status = status
		return p
	}
	text := strings.TrimSpace(string(body))
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return &Problem{Status: status, Detail: text}
}
