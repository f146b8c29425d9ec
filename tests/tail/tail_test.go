package tail

import (
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqltest"
)

func TestCellsArriveOnceInOrder(t *testing.T) {
	r := newRig(t, mysqltest.Server(t), 4)
	rnd := seeded(t)
	r.putSome(t, rnd, 500) // a backlog
	tl := r.run(t, nil)
	r.waitDrained(t, 2*time.Minute)
	r.putSome(t, rnd, 500) // and live
	r.waitDrained(t, 2*time.Minute)
	if rep := r.read(t); !rep.clean() || rep.records != 1000 {
		t.Errorf("%+v", rep)
	}
	waitFor(t, 5*time.Second, tl.Ready)
	if s := tl.Status(); s.Lag <= 0 || s.Lag > 5*time.Second {
		t.Errorf("lag %s", s.Lag)
	}
	// Again after a clean stop: nothing is published twice, and what was put
	// meanwhile arrives.
	stop(t, tl)
	r.putSome(t, rnd, 100)
	r.run(t, nil)
	r.waitDrained(t, 2*time.Minute)
	if rep := r.read(t); !rep.clean() || rep.records != 1100 {
		t.Errorf("%+v", rep)
	}
}
