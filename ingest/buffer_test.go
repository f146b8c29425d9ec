package ingest

import (
	"context"
	"testing"

	"github.com/cellog/cellog"
)

// shelf is a Buffer that says what it is told.
type shelf struct {
	err  error
	kept int
}

func (s *shelf) Buffer(_ context.Context, _ string, _ cellog.ShardID, puts []cellog.Put) error {
	if s.err == nil {
		s.kept += len(puts)
	}
	return s.err
}

func TestBuffering(t *testing.T) {
	unavailable, unknown := &coded{"unavailable", "none"}, &coded{"outcome_unknown", "lost"}
	for _, c := range []struct {
		name          string
		store, buffer error
		code          string // of the answer; "": see outcome
		outcome       cellog.Outcome
		kept          int
	}{
		{"all is well", nil, nil, "", cellog.Created, 0},
		{"no primary", unavailable, nil, "", cellog.Buffered, 2},
		{"no answer", unknown, nil, "", cellog.Buffered, 2},
		{"a refusal is none of the buffer's business", &coded{"column_limit", "no"}, nil, "column_limit", 0, 0},
		{"nothing was sent to anyone", unavailable, unavailable, "unavailable", 0, 0},
		{"one copy may be somewhere", unavailable, unknown, "outcome_unknown", 0, 0},
		{"the primary may have it", unknown, unavailable, "outcome_unknown", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, s := newGate(1, false), &shelf{err: c.buffer}
			g.refuse = c.store
			in := newIngest(t, Config{Store: g, Buffer: s})
			for _, r := range in.PutMany(context.Background(), "trips", []cellog.Put{put(1), put(2)}) {
				if CodeOf(r.Err) != c.code || r.Stored.Outcome != c.outcome {
					t.Errorf("%+v, want %v or code %q", r, c.outcome, c.code)
				}
			}
			if s.kept != c.kept {
				t.Errorf("%d cells buffered, want %d", s.kept, c.kept)
			}
		})
	}
}
