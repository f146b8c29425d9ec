package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// maxErrant bounds the errant cells that a rejoin lists; all are counted, and
// dealt with. Only a test changes it.
var maxErrant = 10000

// What to do with errant cells.
const (
	ErrantKeep = ""     // list them, and change nothing
	ErrantPut  = "put"  // put them again, as a client would
	ErrantDrop = "drop" // let them go
)

// ErrErrant is returned by RejoinNode when a node has cells that are nowhere
// else, and it was not said what to do with them.
var ErrErrant = errors.New("the node has cells that its master has not")

// ErrantCell names a cell that only a rejoining node has.
type ErrantCell struct {
	Datastore string         `json:"datastore"`
	Shard     cellog.ShardID `json:"shard"`
	AddedID   cellog.AddedID `json:"added_id"`
	Epoch     cellog.Epoch   `json:"epoch"`
	Key       string         `json:"key"`
	// Conflict says that the master has another body under this key.
	Conflict bool `json:"conflict"`
}

// errant finds the cells that only the node has, and does with them what was
// said, page by page.
func (p *promotion) errant(ctx context.Context, node, master *sql.DB, what string, out *Rejoined) error {
	heads, err := mysql.Heads(ctx, node)
	if err != nil {
		return err
	}
	st, err := mysql.New(mysql.Config{Clusters: Clusters(p.cfg, workerAccount), Logger: p.env.log()})
	if err != nil {
		return err
	}
	defer func() { _ = st.Stop(context.WithoutCancel(ctx)) }() // it has answered
	if what == ErrantPut {
		if err := st.Start(ctx); err != nil {
			return err
		}
	}
	for _, h := range heads {
		err := mysql.Errant(ctx, node, master, h.Datastore, h.Shard, func(cells []mysql.ErrantCell) error {
			out.ErrantTotal += len(cells)
			for _, c := range cells[:min(len(cells), maxErrant-len(out.Errant))] {
				out.Errant = append(out.Errant, ErrantCell{h.Datastore, h.Shard, c.AddedID, c.Epoch, c.Key.String(), c.Conflict})
			}
			if what != ErrantPut {
				return nil
			}
			return putErrant(ctx, st, master, h, cells, out)
		})
		if err != nil {
			return fmt.Errorf("errant cells of shard %s: %w", cellog.DatabaseName(h.Datastore, h.Shard), err)
		}
	}
	if out.ErrantTotal > 0 && what == ErrantKeep {
		return fmt.Errorf("%w: %d of them: say whether to put them again (--errant put) or to let them go (--errant drop)", ErrErrant, out.ErrantTotal)
	}
	return nil
}

// putErrant puts cells again. What another body stands for, or what is refused for
// good, is recorded as the drainer does with a copy: its client may have been told
// that it is stored.
func putErrant(ctx context.Context, st *mysql.Store, master *sql.DB, h mysql.ShardHead, cells []mysql.ErrantCell, out *Rejoined) error {
	for len(cells) > 0 {
		some := cells[:min(len(cells), 100)]
		cells = cells[len(some):]
		puts := make([]cellog.Put, len(some))
		for i, c := range some {
			puts[i] = cellog.Put{Key: c.Key, Body: c.Body, TraceParent: c.TraceParent}
		}
		stored, errs := st.Write(ctx, h.Datastore, h.Shard, puts)
		for i, c := range some {
			var err error
			switch {
			case errors.Is(errs[i], storage.ErrColumnLimit):
				err = mysql.Reject(ctx, master, h.Datastore, h.Shard, c.Cell, "column_limit", nil)
				out.Refused++
			case errs[i] != nil:
				err = errs[i]
			case stored[i].Outcome == cellog.Conflict:
				var w cellog.Cell
				if w, _, err = st.Version(ctx, h.Datastore, c.Key, cellog.Master); err == nil {
					err = mysql.Reject(ctx, master, h.Datastore, h.Shard, c.Cell, "conflict", &w)
				}
				out.Conflicts++
			default:
				out.Put++
			}
			if err != nil {
				return fmt.Errorf("put cell %s again: %w", c.Key, err)
			}
		}
	}
	return nil
}
