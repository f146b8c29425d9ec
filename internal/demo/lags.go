package demo

import (
	"slices"
	"sync"
	"time"
)

// lags collects durations.
type lags struct {
	mu     sync.Mutex
	all    []time.Duration
	recent int // where those since lately was called last begin
}

func (l *lags) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, max(0, d))
}

// Lag is a summary of durations, in milliseconds.
type Lag struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

func (l *lags) total() Lag {
	l.mu.Lock()
	defer l.mu.Unlock()
	return summary(slices.Clone(l.all))
}

// lately is about what came since it was called last.
func (l *lags) lately() Lag {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := summary(slices.Clone(l.all[l.recent:]))
	l.recent = len(l.all)
	return s
}

func summary(ds []time.Duration) Lag {
	if len(ds) == 0 {
		return Lag{}
	}
	slices.Sort(ds)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()/10) / 100 }
	return Lag{len(ds), ms(ds[len(ds)/2]), ms(ds[(len(ds)-1)*99/100]), ms(ds[len(ds)-1])}
}
