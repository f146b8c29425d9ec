package mysql

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestTurns(t *testing.T) {
	tu := &turns{max: 8}
	for range minTurns {
		if !tu.enter(t.Context()) {
			t.Fatal("no turn for the first ones")
		}
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if tu.enter(done) {
		t.Fatal("more than the first ones at a time")
	}
	var wg sync.WaitGroup
	var running, peak atomic.Int64
	for range 60 { // enough for the maximum
		wg.Go(func() {
			if !tu.enter(t.Context()) {
				t.Error("no turn")
				return
			}
			peak.Store(max(peak.Load(), running.Add(1)))
			runtime.Gosched()
			running.Add(-1)
			tu.leave()
		})
	}
	for range minTurns {
		tu.leave()
	}
	wg.Wait()
	if p := peak.Load(); p > int64(tu.max) || tu.running != 0 || len(tu.waiting) != 0 {
		t.Errorf("%d ran at a time, %d run, %d wait", p, tu.running, len(tu.waiting))
	}
}
