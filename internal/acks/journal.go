package acks

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
)

// Answer is what one attempt at a put was answered.
type Answer struct {
	// Status is the HTTP status, 0 if no answer came.
	Status int
	Key    cellog.Key
	// Body is the JSON that was put.
	Body []byte
}

// line is an Answer in the file.
type line struct {
	Status int             `json:"status"`
	RowKey uuid.UUID       `json:"row_key"`
	Column string          `json:"column"`
	RefKey cellog.RefKey   `json:"ref_key"`
	Body   json.RawMessage `json:"body"`
}

// Journal appends answers to a file. All methods may be called at the same
// time.
type Journal struct {
	mu      sync.Mutex
	file    *os.File
	written int64 // answers that were written
	synced  int64 // of them, those on the disk
	syncing bool
	err     error
	done    *sync.Cond
}

// Create opens a journal, behind what it has already.
func Create(file string) (*Journal, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	j := &Journal{file: f}
	j.done = sync.NewCond(&j.mu)
	return j, nil
}

// Append writes an answer and returns when it is on the disk; those that come
// meanwhile share the next sync. After an error every Append has it.
func (j *Journal) Append(a Answer) error {
	text, err := json.Marshal(line{a.Status, a.Key.Row, a.Key.Column, a.Key.Ref, a.Body})
	if err != nil {
		return fmt.Errorf("acks: %s: %w", a.Key, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return j.err
	}
	if _, j.err = j.file.Write(append(text, '\n')); j.err != nil {
		return j.err
	}
	j.written++
	for mine := j.written; j.synced < mine && j.err == nil; {
		if j.syncing {
			j.done.Wait()
			continue
		}
		j.syncing = true
		upTo := j.written
		j.mu.Unlock()
		err := j.file.Sync()
		j.mu.Lock()
		j.syncing = false
		if err != nil {
			j.err = err
		} else {
			j.synced = upTo
		}
		j.done.Broadcast()
	}
	return j.err
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }

// maxLine bounds a line: the largest body there can be, and its key.
const maxLine = 64 << 20

// read calls fn for each answer of a journal. Half a line at the end, of a
// process that was killed, is no answer.
func read(r io.Reader, fn func(Answer) error) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("acks: line %d: %w", n, err)
		}
		if len(text) > maxLine {
			return fmt.Errorf("acks: line %d has %d bytes, at most %d are taken", n, len(text), maxLine)
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return fmt.Errorf("acks: line %d: %w", n, err)
		}
		if err := fn(Answer{l.Status, cellog.Key{Row: l.RowKey, Column: l.Column, Ref: l.RefKey}, l.Body}); err != nil {
			return fmt.Errorf("acks: line %d: %w", n, err)
		}
	}
}
