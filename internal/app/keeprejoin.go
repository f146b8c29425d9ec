package app

import (
	"context"
	"database/sql"
	"time"

	"github.com/cellog/cellog/internal/mysqlreplica"
)

// lookAround is how often a keeper looks at the other nodes, and at moves. Only a
// test changes it.
var lookAround = 5 * time.Second

// rejoinPatience bounds one look at the other nodes, with all that is rebuilt
// by it. What takes longer is an operator's to copy, see `cluster rejoin`.
const rejoinPatience = time.Hour

// rejoins brings back the nodes of a cluster that answer and do not follow its
// master, beside the keeper's watch, which must go on: a rebuild takes long, and
// the master may fail meanwhile. Its methods are called by the watch alone.
type rejoins struct {
	looked time.Time
	done   chan struct{}      // closed when the look in hand is over; nil: there was none
	end    context.CancelFunc // ends it
}

// cancel ends the look in hand, if there is one, and does not wait for it.
func (r *rejoins) cancel() {
	if r.end != nil {
		r.end()
	}
}

// stop ends the look in hand and waits for it.
func (r *rejoins) stop() {
	r.cancel()
	if r.done != nil {
		<-r.done
	}
}

// look begins a look at the nodes that are not the master, unless one goes on.
func (r *rejoins) look(ctx context.Context, w *watcher) {
	if r.done != nil {
		select {
		case <-r.done:
		default:
			return
		}
	}
	if time.Since(r.looked) < lookAround {
		return
	}
	r.cancel() // frees what the last one had
	ctx, r.end = context.WithTimeout(ctx, rejoinPatience)
	r.looked, r.done = time.Now(), make(chan struct{})
	k, cluster, master := w.k, w.cluster.Name, w.cluster.Addr(w.record.Node)
	nodes := map[string]*sql.DB{}
	w.others(func(name string, db *sql.DB) { nodes[name] = db })
	done := r.done
	go func() {
		defer close(done)
		for name, db := range nodes { // one at a time, to spare the master
			k.rejoin(ctx, cluster, name, master, db)
		}
	}()
}

// rejoin brings a node back, if it answers and does not follow the master.
func (k *Keeper) rejoin(ctx context.Context, cluster, name, master string, db *sql.DB) {
	ask, cancel := context.WithTimeout(ctx, nodePatience/2)
	st, err := mysqlreplica.Status(ask, db)
	cancel()
	if err != nil || st.Source == master && st.Follows() {
		return
	}
	out, err := RejoinNode(ctx, k.cfg, k.env, Rejoin{Cluster: cluster, Node: name, Errant: ErrantPut})
	switch {
	case err == nil:
		k.log.Warn("a node follows again", "cluster", cluster, "node", name, "rebuilt", out.Rebuilt, "errant", out.ErrantTotal, "put", out.Put, "conflicts", out.Conflicts, "refused", out.Refused, "copies", out.Copies, "seconds", out.Seconds)
	case ctx.Err() == nil:
		k.log.Warn("a node does not follow", "cluster", cluster, "node", name, "error", err)
	default:
		k.log.Info("bringing a node back was stopped", "cluster", cluster, "node", name, "why", context.Cause(ctx))
	}
}
