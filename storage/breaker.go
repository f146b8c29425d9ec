package storage

import (
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
)

// Breaker keeps callers from waiting, one after the other, for a node that
// does not answer. It opens after 5 failures in a row and lets one caller
// through after a second (failsafe-go's permit form: Allow, then exactly one
// of Success and Failure).
type Breaker struct {
	cb circuitbreaker.CircuitBreaker[any]
}

// NewBreaker returns a closed breaker.
func NewBreaker() *Breaker {
	return &Breaker{cb: circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(5).
		WithDelay(time.Second).
		WithSuccessThreshold(1).
		Build()}
}

// Allow reports whether the node may be asked now.
func (b *Breaker) Allow() bool { return b.cb.TryAcquirePermit() }

// Success records that the node answered, an error of a statement included.
func (b *Breaker) Success() { b.cb.RecordSuccess() }

// Failure records that the node could not be reached.
func (b *Breaker) Failure() { b.cb.RecordFailure() }

// Open says whether calls are turned away for now.
func (b *Breaker) Open() bool { return b.cb.IsOpen() }

// Closed reports whether the node answered when it was asked last, or has not
// failed often enough to be taken for gone. Asking changes nothing.
func (b *Breaker) Closed() bool { return b.cb.IsClosed() }
