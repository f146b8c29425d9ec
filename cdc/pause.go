package cdc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cellog/cellog/schemas/position"
)

// pauseEvery is how often a tailer looks whether its cluster is paused, and
// pauseTimeout how long it waits for the answer.
const (
	pauseEvery   = time.Second
	pauseTimeout = 3 * time.Second
)

// Pause is an operator's word that nothing of a cluster is to be published for
// now. The zero value is that nobody ever paused it.
type Pause struct {
	Paused bool
	// By and Reason are what the operator said when it was paused or resumed.
	By, Reason string
	// At is when; of two words the later one counts.
	At time.Time
}

// err says who paused, when and why; nil if nobody has.
func (p Pause) err(cluster string) error {
	if !p.Paused {
		return nil
	}
	why := ""
	if p.Reason != "" {
		why = ": " + p.Reason
	}
	return fmt.Errorf("%w by %s since %s%s (`cellog tail resume %s` ends it)", ErrPaused, p.By, p.At.UTC().Format(time.RFC3339), why, cluster)
}

// lookAtPause asks whether the cluster is paused. While nobody can tell, and
// against an older word of a server that lags, what is known stands.
func (t *Tailer) lookAtPause(ctx context.Context) Pause {
	if t.cfg.Paused == nil {
		return Pause{}
	}
	limited, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	p, err := t.cfg.Paused(limited)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil && !p.At.Before(t.status.Pause.At) {
		t.status.Pause = p
	}
	t.metrics.paused.Set(0)
	if t.status.Pause.Paused {
		t.metrics.paused.Set(1)
	}
	return t.status.Pause
}

// awaitPause looks every second until the cluster is paused, or is not; false
// if ctx ended first.
func (t *Tailer) awaitPause(ctx context.Context, paused bool) bool {
	for t.lookAtPause(ctx).Paused != paused {
		if sleep(ctx, pauseEvery) != nil {
			return false
		}
	}
	return ctx.Err() == nil
}

// hold returns when the cluster is not paused: at once, or when an operator
// resumes it. Meanwhile the session stays open and shows that this tailer
// lives, so that no other takes over, and heartbeats are written on the master,
// since readers of minions tell their lag by them.
func (t *Tailer) hold(ctx context.Context, sess Session, cluster *position.Cluster) error {
	p := t.lookAtPause(ctx)
	if !p.Paused {
		return nil
	}
	t.cfg.Logger.Warn("tailer is paused", "cluster", t.cfg.Cluster, "by", p.By, "since", p.At, "reason", p.Reason)
	t.set(func(s *Status) { s.State, s.Node, s.Err = "paused", "", nil })
	var wg sync.WaitGroup
	defer wg.Wait()
	look, cancel := context.WithCancel(ctx)
	defer cancel()
	resumed := make(chan struct{})
	wg.Go(func() {
		if t.awaitPause(look, false) {
			close(resumed)
		}
	})
	if t.cfg.Beat != nil {
		wg.Go(func() { t.beat(look) })
	}
	tick := time.NewTicker(t.cfg.BeatEvery)
	defer tick.Stop()
	for {
		if err := sess.Commit(ctx, t.signOfLife(cluster)); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-resumed:
			t.cfg.Logger.Info("tailer is resumed", "cluster", t.cfg.Cluster)
			t.set(func(s *Status) { s.State = "starting" })
			return nil
		case <-ctx.Done():
			// A clean stop: nobody needs to stand by for this tailer.
			cluster.TailerMark = ""
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
			defer cancel()
			return errors.Join(ctx.Err(), sess.Commit(bye, Commit{Cluster: *cluster}))
		}
	}
}
