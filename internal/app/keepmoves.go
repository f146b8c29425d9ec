package app

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/storage/mysql"
)

// leftMoves are the moves that a keeper has seen on a cluster's master, whose
// movers may have been cut off.
type leftMoves struct {
	looked time.Time                  // when it was looked last
	since  map[cdc.ShardKey]time.Time // closed here, and not handed over; of the look

	looking atomic.Bool // one look at a time
	wg      sync.WaitGroup
}

// leftPatience bounds what is done about one move that was left: a shard that
// cannot be finished by then is opened again.
const leftPatience = 2 * time.Minute

// look does once beside the keeper's watch, which must go on: an index table may
// be long.
func (l *leftMoves) look(ctx context.Context, k *Keeper, cluster string) {
	if l.looking.CompareAndSwap(false, true) {
		l.looked = time.Now()
		l.wg.Go(func() {
			defer l.looking.Store(false)
			l.once(ctx, k, cluster, l.looked)
		})
	}
}

// once finishes the moves to the cluster that were handed over and not opened, at
// once, for nobody else can serve the shard. One away from it that has kept its
// shard closed for finishPatience is gone on with, or undone. A mover that lives
// after all loses nothing by it.
func (l *leftMoves) once(ctx context.Context, k *Keeper, cluster string, looked time.Time) {
	heads, err := l.heads(ctx, k, cluster)
	if err != nil {
		k.log.Warn("moves that were left cannot be looked for", "cluster", cluster, "error", err)
		return
	}
	since := map[cdc.ShardKey]time.Time{}
	for _, h := range heads {
		key := cdc.ShardKey{Datastore: h.Datastore, Shard: h.Shard}
		req := Move{Datastore: h.Datastore, Shard: h.Shard, To: cluster}
		if to := h.MovingTo(); to != "" {
			first, ok := l.since[key]
			if !ok {
				first = looked
			}
			if since[key] = first; looked.Sub(first) < finishPatience {
				continue
			}
			req.To = to
		}
		l.goOn(ctx, k, cluster, req)
	}
	l.since = since
}

// heads returns the shards of the cluster's master that are on their way. Whose a
// shard is, is Kafka's word: one that was moved away keeps its state for good, and
// a copy that never was handed over is its owner's matter.
func (l *leftMoves) heads(ctx context.Context, k *Keeper, cluster string) (out []mysql.ShardHead, err error) {
	record, _ := k.final.cluster(cluster)
	if record == nil {
		return nil, nil
	}
	db, err := openedNode(ctx, k.cfg, cluster, *record)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mysqlconn.Close(db)) }()
	heads, err := mysql.Heads(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, h := range heads {
		// Nothing of it may be published yet: then who has it open has it.
		owner := k.final.owner(h.Datastore, h.Shard)
		if h.Arriving() && owner == cluster || h.MovingTo() != "" && (owner == cluster || owner == "") {
			out = append(out, h)
		}
	}
	return out, nil
}

// goOn does what a mover would have done next.
func (l *leftMoves) goOn(ctx context.Context, k *Keeper, cluster string, req Move) {
	try, cancel := context.WithTimeout(ctx, leftPatience)
	out, err := MoveShard(try, k.cfg, k.env, req)
	cancel()
	if err == nil {
		k.log.Warn("a move that was left is finished", "from", cluster, "to", req.To, "datastore", req.Datastore, "shard", int(req.Shard), "epoch", int(out.Epoch))
		return
	}
	if ctx.Err() != nil || errors.Is(err, ErrOnCluster) {
		return
	}
	k.log.Warn("a move that was left cannot be finished", "cluster", cluster, "to", req.To, "datastore", req.Datastore, "shard", int(req.Shard), "error", err)
	if req.To == cluster || mysqlconn.IsLockTimeout(err) { // or its mover is at work
		return
	}
	req.Undo, req.To = true, ""
	if _, err := MoveShard(ctx, k.cfg, k.env, req); err != nil {
		k.log.Warn("nor undone", "cluster", cluster, "datastore", req.Datastore, "shard", int(req.Shard), "error", err)
		return
	}
	k.log.Warn("it is undone", "cluster", cluster, "datastore", req.Datastore, "shard", int(req.Shard))
}
