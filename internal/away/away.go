// Package away remembers that somebody did not answer, so that callers leave
// them alone for a while: 1 s, doubled with each silence in a row up to 30 s.
//
// It is for peers that have others in their place, and asks no permission: who
// has no other may ask all the same. A server without one has a circuit breaker
// (storage.Breaker).
package away

import (
	"sync"
	"time"
)

const (
	// Min is how long a silent one is left alone at first.
	Min = time.Second
	// Max is the longest that it is left alone.
	Max = 30 * time.Second
)

// Mark is what is remembered of one. The zero value is of one that answers. All
// methods may be called at the same time.
type Mark struct {
	mu       sync.Mutex
	failures int
	until    time.Time
}

// Is says whether it is to be left alone.
func (m *Mark) Is(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Before(m.until)
}

// Answered forgets all silences.
func (m *Mark) Answered() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures, m.until = 0, time.Time{}
}

// Silent records that it gave no answer. Of calls that were on their way
// together the first counts.
func (m *Mark) Silent(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Before(m.until) {
		return
	}
	m.until = now.Add(min(Min<<min(m.failures, 10), Max))
	m.failures++
}
