package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// patience is how long a server, or the brokers, may take over each part of the
// inspection: one that is frozen, or behind a firewall, does not even refuse.
var patience = 10 * time.Second

// noAnswer is what was found of something that gave err in place of an answer.
func noAnswer(ctx context.Context, err error) string {
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %v", patience)
	}
	return err.Error()
}

// Level says how bad a finding is.
type Level string

// The levels of findings.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Bad  Level = "bad"
)

// Finding is what one check found in one place.
type Finding struct {
	// Where is the node, the cluster, or the topic.
	Where string `json:"where"`
	// Check is the setting or fact that was looked at.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Found is what is there, Want what should be.
	Found string `json:"found"`
	Want  string `json:"want,omitempty"`
	// Why says what the difference costs, Fix how to mend it. Both are empty
	// where all is well.
	Why string `json:"why,omitempty"`
	Fix string `json:"fix,omitempty"`
}

// Sort puts the worst first, and keeps the order otherwise.
func Sort(f []Finding) {
	rank := map[Level]int{Bad: 0, Warn: 1, OK: 2}
	slices.SortStableFunc(f, func(a, b Finding) int { return cmp.Compare(rank[a.Level], rank[b.Level]) })
}

// Worst returns the worst level among the findings.
func Worst(f []Finding) Level {
	worst := OK
	for _, x := range f {
		switch {
		case x.Level == Bad:
			return Bad
		case x.Level == Warn:
			worst = Warn
		}
	}
	return worst
}
