package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer/table"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

const (
	// movePage is how many cells are read, and compared, at a time, moveBytes
	// how much of them goes in together.
	movePage  = 500
	moveBytes = 1 << 20
	// moveRest is how many cells may be left when the shard is closed.
	moveRest = 500
	// movePoll is how often is looked whether what was waited for is there.
	movePoll = 20 * time.Millisecond
)

// moveNotice is for how long the new cluster's positions have named a shard that
// is to move before it is closed: by then a worker that goes by an older look
// marks its reads stale. Only a test changes it.
var moveNotice = storage.LookFor + time.Second

// prepare makes the shard on the new cluster, to be copied to.
func (m *move) prepare(ctx context.Context) error {
	c := m.cfg.Cluster(m.req.To)
	a := AdminAccount(c.Accounts)
	node := storage.Cluster{Name: c.Name, Nodes: []storage.Node{{Name: m.to.record.Node, Addr: c.Addr(m.to.record.Node), User: a.User, Password: a.Password.Reveal()}}}
	create := mysql.CreateConfig{Name: m.ds.Name, Shards: m.ds.Shards, Partitions: m.ds.Partitions}
	create.Grant = func(ctx context.Context, db *sql.DB, database string) error {
		ds, shard, ok := cellog.ParseDatabaseName(database)
		if !ok || c.Accounts.Worker.User == a.User { // or a tool's configuration, which knows no others
			return nil
		}
		return mysqlaccounts.GrantDatastore(ctx, db, working(c.Accounts), ds, []cellog.ShardID{shard})
	}
	return mysql.PrepareCopy(ctx, node, create, m.key.Shard, m.head.Epoch)
}

// compareThere compares what lies on the new cluster of an earlier run, or an
// earlier time, and returns the last of it.
func (m *move) compareThere(ctx context.Context) (have cellog.AddedID, err error) {
	h, _, err := mysql.Head(ctx, m.to.db, m.key.Datastore, m.key.Shard)
	if err != nil {
		return 0, err
	}
	have = h.Last
	after := cellog.AddedID(0)
	if m.head.MovingTo() != "" {
		// Whoever closed it had compared all, and others wait: but for the page
		// at which a mover may have been killed since.
		after = max(0, have-movePage)
	}
	for after < have {
		upTo := min(after+movePage, have)
		err := mysql.CompareCopy(ctx, m.from.db, m.to.db, m.key.Datastore, m.key.Shard, after, upTo)
		if errors.Is(err, mysql.ErrDiffers) {
			err = fmt.Errorf("%w: what lies on cluster %s is not this shard's: drop database %s there", err, m.req.To, cellog.DatabaseName(m.key.Datastore, m.key.Shard))
		}
		if err != nil {
			return have, err
		}
		after = upTo
		m.say(after, max(have, m.head.Last), "comparing what is there")
	}
	return have, nil
}

// copyFinal copies what is final, while the shard serves until little is left
// that is not there.
func (m *move) copyFinal(ctx context.Context, have cellog.AddedID) (cellog.AddedID, error) {
	moved := time.Now() // when what is final grew last
	for {
		pos, err := m.from.pub.Positions(ctx)
		if err != nil {
			return have, err
		}
		if final := pos.Shards[m.key].Last; final > have {
			if have, err = m.copyUpTo(ctx, have, final); err != nil {
				return have, err
			}
			moved = time.Now()
		}
		h, _, err := mysql.Head(ctx, m.from.db, m.key.Datastore, m.key.Shard)
		switch {
		case err != nil:
			return have, err
		case h.Last-have < moveRest || !h.Open():
			return have, nil
		case time.Since(moved) > finalTimeout:
			return have, fmt.Errorf("shard %s is final up to %d of %d, and was not closed for that: is the tailer of cluster %s running?", m.key, have, h.Last, m.from.name)
		}
		if err := wait(ctx, movePoll); err != nil {
			return have, err
		}
	}
}

// copyUpTo copies the cells after have up to upTo, all of which are final, and
// compares them.
func (m *move) copyUpTo(ctx context.Context, have, upTo cellog.AddedID) (cellog.AddedID, error) {
	for have < upTo {
		cells, err := mysql.ReadEntity(ctx, m.from.db, m.key.Datastore, m.key.Shard, have, int(min(movePage, upTo-have)))
		if err != nil {
			return have, err
		}
		if len(cells) == 0 {
			return have, fmt.Errorf("shard %s: node %s has no cell after added_id %d, final are those up to %d", m.key, m.from.record.Node, have, upTo)
		}
		first := have
		for len(cells) > 0 {
			n, size := 0, 0
			for n < len(cells) && (n == 0 || size+len(cells[n].Body) < moveBytes) {
				size += len(cells[n].Body)
				n++
			}
			if _, err := mysql.AppendCopy(ctx, m.to.db, m.key.Datastore, m.key.Shard, cells[:n]); err != nil {
				return have, err
			}
			have = cells[n-1].AddedID
			cells = cells[n:]
			m.out.Copied += int64(n)
		}
		if err := mysql.CompareCopy(ctx, m.from.db, m.to.db, m.key.Datastore, m.key.Shard, first, have); err != nil {
			return have, err
		}
		failpoint.Hit("move/page-copied")
		m.say(have, max(upTo, m.head.Last), "copying")
	}
	return have, nil
}

// errHandedOver is returned when another mover was faster.
var errHandedOver = errors.New("the shard was handed over by another mover")

// copyIndexes copies the index tables, and says that all is there. It holds the
// lock under which a shard is handed over, so that no two movers are at it, and
// none is when the tables are in use on the new cluster.
func (m *move) copyIndexes(ctx context.Context, last cellog.AddedID) error {
	return mysql.WhileMoving(ctx, m.from.db, m.key.Datastore, m.key.Shard, m.head.Epoch, m.req.To, last, func(ctx context.Context) error {
		was, _, err := mysql.Head(ctx, m.to.db, m.key.Datastore, m.key.Shard)
		if err != nil {
			return err
		}
		pos, err := m.from.pub.Standing(ctx)
		if err != nil {
			return err
		}
		if s, ok := pos.Shards[m.key]; ok && s.Owner != m.from.name {
			return errHandedOver
		}
		state, err := mysql.ClaimCopy(ctx, m.to.db, m.key.Datastore, m.key.Shard, was, uuid.NewString())
		if err != nil {
			return err
		}
		failpoint.Hit("move/copy-claimed")
		if m.out.IndexRows, err = table.CopyShard(ctx, table.Copy{From: m.from.db, To: m.to.db, Datastore: m.key.Datastore, Shard: m.key.Shard, State: state}); err != nil {
			return err
		}
		failpoint.Hit("move/indexes-copied")
		m.arrived, err = mysql.Arrive(ctx, m.to.db, m.key.Datastore, m.key.Shard, state, m.head.Epoch+1, last)
		return err
	})
}

// waitFinal returns when all cells of the shard, which is closed, are final.
func (m *move) waitFinal(ctx context.Context, last cellog.AddedID) error {
	ctx, cancel := context.WithTimeout(ctx, finalTimeout)
	defer cancel()
	for {
		pos, err := m.from.pub.Positions(ctx)
		if err != nil {
			return err
		}
		s := pos.Shards[m.key]
		switch {
		case s.Epoch > m.head.Epoch || s.Last > last:
			return fmt.Errorf("shard %s is of epoch %d by now: a promotion has voided the move", m.key, s.Epoch)
		case s.Last == last:
			return nil
		}
		if err := wait(ctx, movePoll); err != nil {
			return fmt.Errorf("shard %s is final up to %d of %d (is the tailer of cluster %s running?): %w", m.key, s.Last, last, m.from.name, err)
		}
	}
}

// minions returns the minions of the new cluster that answer and follow. The
// others get the shard before they can be tailed, or become the master.
func (m *move) minions(ctx context.Context) (names []string, err error) {
	c := m.cfg.Cluster(m.req.To)
	for _, n := range c.Nodes {
		if n.Name == m.to.record.Node {
			continue
		}
		db, err := openAdmin(c, n.Name)
		if err != nil {
			return nil, err
		}
		ask, cancel := context.WithTimeout(ctx, nodePatience)
		st, err := mysqlreplica.Status(ask, db)
		cancel()
		if err == nil && st.Configured {
			names = append(names, n.Name)
		} else {
			m.env.log().Warn("a minion does not follow: it gets the shard when it does", "cluster", m.req.To, "node", n.Name, "error", err)
		}
		if err := mysqlconn.Close(db); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// waitMinions returns when those minions of the new cluster that answer have the
// shard too, of which there must be one: any of them may be tailed, or become the
// master.
func (m *move) waitMinions(ctx context.Context, epoch cellog.Epoch, last cellog.AddedID) error {
	c := m.cfg.Cluster(m.req.To)
	names, err := m.minions(ctx)
	if err == nil && len(names) == 0 && len(c.Nodes) > 1 {
		err = fmt.Errorf("no minion of cluster %s follows its master any more: bring one back (`cellog cluster rejoin %s NODE`), then run the same again, or open the shard where it was (--undo)", c.Name, c.Name)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, finalTimeout)
	defer cancel()
	for _, name := range names {
		db, err := openAdmin(c, name)
		if err != nil {
			return err
		}
		err = m.waitMinion(ctx, db, name, epoch, last)
		if err := errors.Join(err, mysqlconn.Close(db)); err != nil {
			return err
		}
	}
	return nil
}

func (m *move) waitMinion(ctx context.Context, db *sql.DB, name string, epoch cellog.Epoch, last cellog.AddedID) error {
	for {
		h, ok, err := mysql.Head(ctx, db, m.key.Datastore, m.key.Shard)
		if err == nil && ok && h.Epoch >= epoch && h.Last >= last {
			return nil
		}
		if err == nil {
			err = wait(ctx, movePoll)
		}
		if err != nil {
			return fmt.Errorf("node %s/%s does not have all of shard %s yet: is it behind? %w", m.req.To, name, m.key, err)
		}
	}
}
