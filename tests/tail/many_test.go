package tail

import (
	"fmt"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/internal/mysqltest"
)

// A start asks for all shards of a server at a time, however many there are.
func TestStartAsksForManyShardsAtATime(t *testing.T) {
	const shards, most = 300, 20
	r := newRig(t, mysqltest.Start(t), shards)
	rnd := seeded(t)
	for s := range cellog.ShardID(shards) {
		if err := r.putColumn(t.Context(), s, "BASE", 1+rnd.IntN(2), rnd); err != nil {
			t.Fatal(err)
		}
	}
	tl := r.run(t, nil)
	r.waitDrained(t, 2*time.Minute)
	stop(t, tl)
	before := r.selects(t)
	tl = r.tailer(t, func(c *cdc.Config, _ *binlog.Config) { c.Beat = nil })
	if err := tl.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 2*time.Minute, func() error {
		if s := tl.Status(); s.State != "streaming" || len(s.Stopped) > 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	stop(t, tl)
	if n := r.selects(t) - before; n > most {
		t.Errorf("%d statements to start over %d shards, want at most %d", n, shards, most)
	}
	r.mustBeClean(t)
}

// selects is how many SELECTs the server has carried out.
func (r *rig) selects(t testing.TB) (n int) {
	t.Helper()
	var name string
	if err := r.db.QueryRow("SHOW GLOBAL STATUS LIKE 'Com_select'").Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
