package demo

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
)

// maxDifferences bounds how many differences a Report spells out.
const maxDifferences = 20

// Accounts is the comparison of the gateway's books with the trips and their
// STATUS cells.
type Accounts struct {
	Trips int `json:"trips"`
	// Charged trips were charged once; Declined ones never, at the last
	// attempt allowed.
	Charged  int `json:"charged"`
	Declined int `json:"declined"`
	// Amount is the sum of the charges in the books, Fares that of the charged
	// trips' fares.
	Amount string `json:"amount"`
	Fares  string `json:"fares"`
	// Differences counts what is wrong, Details says what, for the first ones.
	Differences int      `json:"differences"`
	Details     []string `json:"details,omitempty"`
}

func (a *Accounts) differ(format string, args ...any) {
	a.Differences++
	if len(a.Details) < maxDifferences {
		a.Details = append(a.Details, fmt.Sprintf(format, args...))
	}
}

// settle compares the books with the trips: each trip must have been charged
// exactly once, or been declined MaxAttempts times; each attempt must have its
// STATUS cell, with the same outcome; and nothing else may be in the books.
// statuses gives a trip's STATUS cells by attempt.
func settle(trips []*Trip, books map[string]Entry, statuses map[uuid.UUID]map[cellog.RefKey]Status) *Accounts {
	a := &Accounts{Trips: len(trips)}
	known := make(map[string]bool, len(books))
	var amount, fares int64
	for _, t := range trips {
		charged, attempts := 0, cellog.RefKey(0)
		for n := cellog.RefKey(1); n <= MaxAttempts; n++ {
			key := ChargeKey(t.Row, n)
			e, ok := books[key]
			st, written := statuses[t.Row][n]
			if ok != written || ok && st.Outcome != e.Outcome {
				a.differ("attempt %s: the books say %q, STATUS says %q", key, e.Outcome, st.Outcome)
			}
			if !ok {
				continue
			}
			known[key] = true
			if n != attempts+1 {
				a.differ("attempt %s: there was none before it", key)
			}
			attempts = n
			if e.Amount != money(t.Cents) {
				a.differ("attempt %s: %s instead of %s", key, e.Amount, money(t.Cents))
			}
			if e.Outcome == Charged {
				charged++
				amount += cents(e.Amount)
			}
		}
		switch {
		case charged == 1:
			a.Charged++
			fares += t.Cents
		case charged > 1:
			a.differ("trip %s was charged %d times", t.Row, charged)
		case attempts == MaxAttempts:
			a.Declined++
		default:
			a.differ("trip %s: %d attempts, not charged", t.Row, attempts)
		}
		if extra := len(statuses[t.Row]) - int(attempts); extra > 0 {
			a.differ("trip %s: %d STATUS cells without an attempt", t.Row, extra)
		}
	}
	for key, e := range books {
		if !known[key] {
			a.differ("the books have %s (%s), which belongs to no trip", key, e.Outcome)
		}
	}
	a.Amount, a.Fares = money(amount), money(fares)
	if amount != fares {
		a.differ("the books have charged %s for fares of %s", a.Amount, a.Fares)
	}
	sort.Strings(a.Details)
	return a
}

// cents reads what money writes; anything else counts as nothing, and the
// amount's own check names it.
func cents(s string) int64 {
	n, err := strconv.ParseInt(strings.Replace(s, ".", "", 1), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// readStatuses reads the STATUS cells of trips over HTTP.
func readStatuses(ctx context.Context, c *client.Client, datastore string, trips []*Trip) (map[uuid.UUID]map[cellog.RefKey]Status, error) {
	out := make(map[uuid.UUID]map[cellog.RefKey]Status, len(trips))
	var mu sync.Mutex
	err := each(ctx, trips, func(t *Trip) error {
		page, err := c.History(ctx, datastore, cellog.Key{Row: t.Row, Column: columnStatus}, 100, "", client.ReadOptions{})
		if client.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("STATUS of trip %s: %w", t.Row, err)
		}
		m := make(map[cellog.RefKey]Status, len(page.Cells))
		for _, cell := range page.Cells {
			st, err := parseStatus(cell.Body)
			if err != nil {
				return fmt.Errorf("%s: %w", cell.Key, err)
			}
			m[cell.Ref] = st
		}
		mu.Lock()
		defer mu.Unlock()
		out[t.Row] = m
		return nil
	})
	return out, err
}
