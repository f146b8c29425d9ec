package cdc

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/heartbeat"
	"github.com/cellog/cellog/schemas/position"
)

// lookAtHeads keeps the heads of the master's shards, until ctx ends. It runs
// beside the sessions, so that the lag in cells is true while none streams.
func (t *Tailer) lookAtHeads(ctx context.Context) {
	failing := false
	for {
		began := time.Now()
		heads := make(map[ShardKey]cellog.AddedID)
		limited, cancel := context.WithTimeout(ctx, max(t.cfg.HeadsEvery, 10*time.Second))
		err := t.cfg.Heads(limited, func(h Head) error { heads[h.Shard] = h.Last; return nil })
		cancel()
		switch {
		case err == nil:
			t.mu.Lock()
			t.heads = heads
			t.mu.Unlock()
		case !failing && ctx.Err() == nil:
			t.cfg.Logger.Warn("heads of the shards not read; the lag in cells is by the last look", "cluster", t.cfg.Cluster, "error", err)
		}
		failing = err != nil
		// Where there are so many shards that a look is slow, fewer looks are taken.
		if sleep(ctx, max(t.cfg.HeadsEvery, 20*time.Since(began))) != nil {
			return
		}
	}
}

// keepPublished notes what the positions say at a start.
func (t *Tailer) keepPublished(shards map[ShardKey]position.Shard) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.published = make(map[ShardKey]position.Shard, len(shards))
	t.notePublished(shards)
}

// notePublished is called with mu held.
func (t *Tailer) notePublished(shards map[ShardKey]position.Shard) {
	for k, p := range shards {
		t.published[k] = position.Shard{Owner: p.Owner, Last: p.Last}
	}
}

// lagCells counts the cells that the last look at the heads found and that are
// not published; with mu held. Shards that are another cluster's do not count.
func (t *Tailer) lagCells() (cells int64) {
	if t.published == nil { // no session has read the positions yet, or another tailer is at work
		return 0
	}
	for k, head := range t.heads {
		p, known := t.published[k]
		if !known || p.Owner == t.cfg.Cluster {
			cells += max(0, int64(head-p.Last))
		}
	}
	return cells
}

// committed notes what arrived in Kafka.
func (t *Tailer) committed(cells int, shards map[ShardKey]position.Shard, beats []Beat) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status.LastCommit = now
	t.status.Cells += int64(cells)
	t.notePublished(shards)
	for _, b := range beats {
		if b.Cluster != "" {
			t.status.LastBeat, t.status.Lag = now, max(0, now.Sub(b.WrittenAt))
			t.silence = t.cfg.SilentAfter
		}
	}
}

// tell is what goes into Kafka with each heartbeat.
func (t *Tailer) tell() heartbeat.Tailer {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := heartbeat.Tailer{State: t.status.State, Node: t.status.Node, Stopped: len(t.stops)}
	if h.Stopped == 0 {
		return h
	}
	names := make(map[string]error, len(t.stops))
	for k, err := range t.stops {
		names[k.String()] = err
	}
	h.Reasons = make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(names))[:min(len(names), heartbeat.MaxReasons)] {
		why := names[name].Error()
		h.Reasons[name] = strings.ToValidUTF8(why[:min(len(why), heartbeat.MaxReason)], "")
	}
	return h
}
