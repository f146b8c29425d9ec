package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog"
)

// statementWait is how long after a statement, in place of rows, entity is
// looked at: a server writes its binlog before the rows can be seen.
const statementWait = 500 * time.Millisecond

// looks finds cells that a shard has and that the binlog never shows: put as a
// statement, with sql_log_bin off, or under GTIDs that the position had already.
//
//  1. Now and then the heads of the shards are read.
//  2. A heartbeat that is younger than that arrives through the binlog: all
//     that the heads count was to be seen before it.
//  3. A shard that is not there yet is filled up to its head.
type looks struct {
	every time.Duration
	next  time.Time
	heads map[ShardKey]cellog.AddedID // nil: compared already
	at    int64                       // when they were read, as beats count
}

// look does what is due when a transaction comes. The heartbeats are those of
// this process: it is its clock that numbers them.
func (s *sequencer) look(ctx context.Context, t *Transaction) error {
	now := time.Now()
	if due := now.Add(statementWait); t.Statement && (s.recheck.IsZero() || s.recheck.After(due)) {
		s.recheck = due
	}
	l := &s.looks
	passed := now.After(l.next)
	for _, b := range t.Beats {
		passed = passed || b.Cluster == s.cluster && b.Beat > l.at
	}
	if passed {
		for k, last := range l.heads {
			st, err := s.state(ctx, k)
			if err != nil {
				return err
			}
			if st != nil && st.last < last {
				if err := s.fill(ctx, k, st, last); err != nil {
					return err
				}
			}
		}
		l.heads = nil
	}
	if now.Before(l.next) || t.Reading > 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, headsTimeout)
	defer cancel()
	l.heads = make(map[ShardKey]cellog.AddedID)
	err := s.entities.Heads(limited, func(h Head) error {
		if st := s.shards[h.Shard]; st == nil || st.last < h.Last {
			l.heads[h.Shard] = h.Last
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the heads of the shards: %w", err)
	}
	l.at, l.next = time.Now().UnixMicro(), now.Add(l.every)
	return nil
}

// there says whether entity holds the cell with an added_id. The error is for
// when the server does not answer; a table that is not there holds nothing.
func (s *sequencer) there(ctx context.Context, k ShardKey, at cellog.AddedID) (bool, error) {
	cells, err := s.entities.ReadEntity(ctx, k.Datastore, k.Shard, max(at, 1)-1, 1)
	if err == nil {
		return at == 0 || len(cells) > 0 && cells[0].AddedID == at, nil
	}
	if down := s.entities.Heads(ctx, func(Head) error { return nil }); down != nil && !errors.Is(err, ErrShard) {
		return false, fmt.Errorf("read %s.entity at %d: %w", k, at, err)
	}
	return false, nil
}
