package cdc

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// silentAfter is the default of Config.SilentAfter.
const silentAfter = 15 * time.Second

// mostSilence bounds how long a node that was silent again and again is waited
// for.
const mostSilence = 10 * time.Minute

// shows takes note that the source showed something.
func (t *Tailer) shows() {
	t.mu.Lock()
	t.shown, t.unseen = time.Now(), 0
	t.mu.Unlock()
}

// watch ends a session whose node shows nothing, although the heartbeats that go
// to the master are written: a minion that replicates no more, or a reader that
// hangs. A session that Kafka holds up is not meant: its queue is not empty, or
// the source goes on. Until a heartbeat comes through again the patience doubles
// each time, so that a node which is only slow, with one big transaction or over
// a bad line, gets the time that it needs.
func (t *Tailer) watch(ctx context.Context, q *queue, node string) error {
	t.mu.Lock()
	t.shown, t.unseen = time.Now(), 0
	t.silence = max(t.silence, t.cfg.SilentAfter)
	t.mu.Unlock()
	for sleep(ctx, t.cfg.BeatEvery) == nil {
		cells, _ := q.inFlight()
		t.mu.Lock()
		silent := time.Since(t.shown)
		stuck := cells == 0 && silent >= t.silence && time.Duration(t.unseen)*t.cfg.BeatEvery >= t.silence
		if stuck {
			t.silent, t.silence = node, min(2*t.silence, mostSilence)
		}
		t.mu.Unlock()
		if stuck {
			return fmt.Errorf("%w: node %s, for %s: does it replicate (`cellog cluster list %s`), and log what it applies?", ErrNodeSilent, node, silent.Round(time.Second), t.cfg.Cluster)
		}
	}
	return nil
}

// silentLast moves the node that was silent last behind the others.
func (t *Tailer) silentLast(nodes []Node) []Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == t.silent })
	if i < 0 {
		return nodes
	}
	return append(slices.Delete(slices.Clone(nodes), i, i+1), nodes[i])
}
