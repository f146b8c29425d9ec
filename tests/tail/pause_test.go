package tail

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/app"
)

// A paused tailer commits what it has, holds its place over restarts, lets no
// other go on, and loses and doubles nothing.
func TestPauseAndResume(t *testing.T) {
	a, rnd := newAlive(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := a.write(ctx, t, rnd, 3*time.Millisecond)
	defer func() { cancel(); <-done }()
	for round := range 2 {
		stands, node, err := app.SetPause(t.Context(), a.direct, a.cluster, cdc.Pause{Paused: true, By: "ada", Reason: fmt.Sprintf("round %d", round)})
		if err != nil || node != "n1" || !stands.Paused {
			t.Fatal(stands, node, err)
		}
		waitFor(t, time.Minute, func() error {
			s, err := a.status(), a.tailers.Ready(t.Context())
			if s.State != "paused" || !errors.Is(err, cdc.ErrPaused) || !strings.Contains(err.Error(), stands.Reason) || a.metric(t, "cellog_cdc_paused") != 1 {
				return fmt.Errorf("%+v, ready: %v", s, err)
			}
			return nil
		})
		held := a.status().Cells
		other, _ := a.another(t)
		waitFor(t, time.Minute, func() error {
			if s := other.Status()[a.cluster]; s.State != "standing-by" {
				return fmt.Errorf("the other tailer: %+v", s)
			}
			return nil
		})
		a.pausedStays(t, held)
		if round == 1 { // neither is a restart a way out
			end(t, a.tailers)
			waitFor(t, time.Minute, func() error {
				if s := other.Status()[a.cluster]; s.State != "paused" {
					return fmt.Errorf("the other tailer: %+v", s)
				}
				return nil
			})
			end(t, other)
			a.start(t)
			waitFor(t, time.Minute, func() error {
				if s := a.status(); s.State != "paused" || s.Cells != 0 {
					return fmt.Errorf("after a restart: %+v", s)
				}
				return nil
			})
			a.pausedStays(t, 0)
		} else {
			end(t, other)
		}
		if stands, _, err = app.SetPause(t.Context(), a.direct, a.cluster, cdc.Pause{By: "bob"}); err != nil || stands.Paused {
			t.Fatal(stands, err)
		}
		waitFor(t, time.Minute, func() error {
			if s := a.status(); s.State != "streaming" || s.Cells == held {
				return fmt.Errorf("after a resume: %+v", s)
			}
			return a.tailers.Ready(t.Context())
		})
	}
	cancel()
	<-done
	a.flows(t)
}

// pausedStays returns once more cells wait, none of which came through.
func (a *alive) pausedStays(t *testing.T, published int64) {
	t.Helper()
	waiting := a.status().LagCells
	waitFor(t, time.Minute, func() error {
		s := a.status()
		if s.LagCells <= waiting || s.Lag < 2*time.Second {
			return fmt.Errorf("%+v", s)
		}
		if s.Cells != published {
			t.Errorf("a paused tailer published %d cells", s.Cells-published)
		}
		return nil
	})
}

// A shard that was stopped is named to the operator with the reason, by Kafka
// alone; the others flow.
func TestStoppedShardIsExplained(t *testing.T) {
	a, rnd := newAlive(t, 1)
	if err := a.put(t.Context(), 1, 3, rnd); err != nil { // chance may have left it with fewer
		t.Fatal(err)
	}
	a.flows(t)
	a.exec(t, "UPDATE "+a.database(1)+".entity SET ref_key = ref_key + 1 WHERE added_id = 3")
	waitFor(t, time.Minute, func() error {
		if s := a.status(); len(s.Stopped) != 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if err := errors.Join(a.put(t.Context(), 0, 5, rnd), a.put(t.Context(), 1, 5, rnd)); err != nil {
		t.Fatal(err)
	}
	s := a.told(t)
	if s.State != app.TailShards || len(s.Still) != 1 || s.Still[0].Shard != a.database(1) || s.Cells != 5 || !strings.Contains(s.Still[0].Reason, "cells are immutable") {
		t.Errorf("the operator is told %+v", s)
	}
	waitFor(t, time.Minute, func() error {
		if n := a.status().LagCells; n != 5 {
			return fmt.Errorf("%d cells behind", n)
		}
		return nil
	})
	explained := func(shard cellog.ShardID) string {
		e, err := app.ExplainTail(t.Context(), a.direct, app.Env{}, a.cluster, a.store, shard)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(append(e.Words, e.Help...), "\n")
	}
	text := explained(1)
	for _, want := range []string{"1 of its shards stand still", "cells are immutable", "n2 holds all that is final", "cellog verify " + a.store} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "fare") {
		t.Errorf("a body is shown:\n%s", text)
	}
	if text := explained(0); strings.Contains(text, "immutable") || !strings.Contains(text, a.database(0)+" is open on node n1") {
		t.Errorf("the other shard:\n%s", text)
	}
}
