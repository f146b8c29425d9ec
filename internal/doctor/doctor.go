package doctor

import (
	"cmp"
	"slices"
)

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
