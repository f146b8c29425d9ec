package app

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage/mysql"
)

// ErrRejoining is returned by RejoinNode while another one brings the same node
// back.
var ErrRejoining = errors.New("another rejoin of the node goes on")

// Rejoin says which node is to follow its cluster's master again.
type Rejoin struct {
	Cluster, Node string
	// Errant is one of the constants above.
	Errant string
	// Rebuild is the operator's word that a node which cannot follow is to be
	// rebuilt, whatever the reason.
	Rebuild bool
	// Progress is told what is being done; nil: nobody listens.
	Progress func(step string)
}

// Rejoined is what a rejoin did.
type Rejoined struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	Master  string `json:"master"`
	// Errant are the first of the cells that only this node had, ErrantTotal is how
	// many there were. Of those that were put again, Put went in; Conflicts, under
	// whose key another body stands, and Refused are rejected cells of the master now.
	Errant      []ErrantCell `json:"errant"`
	ErrantTotal int          `json:"errant_total"`
	Put         int          `json:"put"`
	Conflicts   int          `json:"conflicts"`
	Refused     int          `json:"refused"`
	// Copies and Rejected are what it held of other clusters' cells, and its
	// master has now.
	Copies   int `json:"copies"`
	Rejected int `json:"rejected"`
	// Rebuilt is false for a node that could follow as it was.
	Rebuilt bool    `json:"rebuilt"`
	Rows    int64   `json:"rows"`
	Seconds float64 `json:"seconds"`
}

// RejoinNode makes a node follow its cluster's master again. One that has
// nothing of its own is only re-pointed; one that has diverged, or is empty, is
// rebuilt, after what it holds of other clusters' cells was carried over and its
// errant cells were listed, put again or let go. One that cannot follow for any
// other reason is left as it is. Either way the working accounts then have their
// rights on it, as they must before it is a master. It may be repeated.
func RejoinNode(ctx context.Context, cfg *config.Config, env Env, req Rejoin) (out Rejoined, err error) {
	start := time.Now()
	defer func() { out.Seconds = time.Since(start).Seconds() }()
	out = Rejoined{Cluster: req.Cluster, Node: req.Node, Errant: []ErrantCell{}}
	say := func(format string, args ...any) {
		s := fmt.Sprintf(format, args...)
		env.log().Info("rejoin", "cluster", req.Cluster, "node", req.Node, "step", s)
		if req.Progress != nil {
			req.Progress(s)
		}
	}
	p := promotion{cfg: cfg, env: env, req: Promote{Cluster: req.Cluster}}
	if p.cluster, err = cfg.FindCluster(req.Cluster); err != nil {
		return out, err
	}
	if _, err := p.cluster.FindNode(req.Node); err != nil {
		return out, err
	}
	record, err := openedOf(ctx, cfg, env, req.Cluster)
	if err != nil {
		return out, err
	}
	switch {
	case record == nil || record.State != position.Open:
		return out, fmt.Errorf("cluster %s is not open: promote a node first", req.Cluster)
	case record.Node == req.Node:
		return out, fmt.Errorf("node %s is the master of cluster %s", req.Node, req.Cluster)
	}
	out.Master = record.Node
	master, err := openedNode(ctx, cfg, req.Cluster, *record)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, mysqlconn.Close(master)) }()
	unlock, err := lockRejoin(ctx, master, req.Node)
	if err != nil {
		return out, err
	}
	defer unlock()
	node, err := openAdmin(p.cluster, req.Node)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, mysqlconn.Close(node)) }()
	src, err := p.source(record.Node)
	if err != nil {
		return out, err
	}
	if err := mysqlreplica.SetReadOnly(ctx, node, true); err != nil {
		return out, err
	}
	p.out.Node = record.Node
	if has, err := p.isNode(ctx, node); err != nil {
		return out, err
	} else if has {
		err := p.rePoint(ctx, req.Node, node, master, src)
		if err == nil {
			err = p.applies(ctx, node, master)
		}
		if err == nil {
			// Only now: what it lacked of accounts may have come with the rest.
			if err := ensureRights(ctx, p.cluster, req.Node); err != nil {
				return out, fmt.Errorf("node %s follows %s, but whether it could take its place is not sure: mend this and repeat: %w", req.Node, record.Node, err)
			}
			say("it has nothing of its own: it follows %s", record.Node)
			return out, nil
		}
		// A busy master, a password or a firewall is no reason to drop what it has.
		if !req.Rebuild && !errors.Is(err, mysqlreplica.ErrDiverged) {
			return out, fmt.Errorf("node %s does not follow %s (yet), and nothing proves that it differs, so it was not rebuilt: mend the cause and repeat, or have it rebuilt all the same (--rebuild): %w", req.Node, record.Node, err)
		}
		say("it cannot follow as it is")
		if err := mysqlreplica.Stop(ctx, node); err != nil {
			return out, err
		}
		if out.Copies, out.Rejected, err = mysql.Carry(ctx, node, master); err != nil {
			return out, err
		}
		say("%d copies and %d rejected cells carried over", out.Copies, out.Rejected)
		if err := p.errant(ctx, node, master, req.Errant, &out); err != nil {
			return out, err
		}
		if out.ErrantTotal > 0 {
			say("%d errant cells, %d put again, %d conflicts, %d refused", out.ErrantTotal, out.Put, out.Conflicts, out.Refused)
		}
	}
	// The accounts are the node's own: nothing brings those that it lacks.
	if err := accountsThere(ctx, p.cluster, node); err != nil {
		return out, fmt.Errorf("node %s was not rebuilt: %w", req.Node, err)
	}
	say("rebuilding it from %s", record.Node)
	from, err := adminConn(p.cluster, record.Node)
	if err != nil {
		return out, err
	}
	to, err := adminConn(p.cluster, req.Node)
	if err != nil {
		return out, err
	}
	confirm := func(ctx context.Context) error {
		failpoint.Hit("rejoin/rebuild")
		if err := p.stands(ctx, *record, node); err != nil {
			return err
		}
		out.Rebuilt = true
		return nil
	}
	complete := func(ctx context.Context) error {
		failpoint.Hit("rejoin/copied")
		return ensureRights(ctx, p.cluster, req.Node)
	}
	return out, mysqlreplica.Rebuild(ctx, mysqlreplica.RebuildConfig{From: from, To: to, Source: src, Confirm: confirm, Complete: complete,
		Progress: func(pr mysqlreplica.Progress) { out.Rows = pr.Rows }})
}

// applies waits until a node that runs has applied what the master has by now, or
// for as long as a node is given: one that is only behind follows. Both threads of
// one that has diverged run too, until the one comes to what the other fetched.
func (p *promotion) applies(ctx context.Context, node, master *sql.DB) error {
	gtids, err := mysqlreplica.GTIDs(ctx, master)
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, rePointPatience)
	defer cancel()
	err = mysqlreplica.WaitForGTIDs(patience, node, gtids)
	if patience.Err() != nil && !errors.Is(err, mysqlreplica.ErrStopped) {
		return ctx.Err()
	}
	return err
}

// stands says that Kafka still has the record, and that a node is not the one
// that it names.
func (p *promotion) stands(ctx context.Context, was position.Cluster, node *sql.DB) error {
	now, err := openedOf(ctx, p.cfg, p.env, p.req.Cluster)
	if err != nil {
		return fmt.Errorf("is %s still the master? %w", was.Node, err)
	}
	if now == nil || now.State != position.Open || now.Term != was.Term || now.Node != was.Node || now.ServerUUID != was.ServerUUID {
		return fmt.Errorf("cluster %s is promoted meanwhile, so nothing was dropped: repeat it", p.req.Cluster)
	}
	s, err := mysqlreplica.Identity(ctx, node)
	if err == nil && s.ID == now.ServerUUID {
		err = fmt.Errorf("it is the server %s, which is the master of cluster %s in term %d", s.ID, p.req.Cluster, now.Term)
	}
	return err
}

// lockRejoin lets one rejoin of a node go on at a time. The lock is a session's of
// the master, for the node's own sessions are ended: two that dropped and filled
// the same tables would leave a node that is neither.
func lockRejoin(ctx context.Context, master *sql.DB, node string) (unlock func(), err error) {
	conn, err := master.Conn(ctx)
	if err != nil {
		return nil, err
	}
	// A lock's name has 64 characters at most.
	var got sql.NullInt64
	if err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(CONCAT('cr', LEFT(SHA2(?, 256), 60)), 0)", node).Scan(&got); err == nil && got.Int64 != 1 {
		err = fmt.Errorf("node %s: %w", node, ErrRejoining)
	}
	release := func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // ends the session, and the lock with it
		_ = conn.Close()                                           // already closed by Raw
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// isNode says whether a server has a node's data; one that is empty, or whose
// rebuild was cut off, has not.
func (p *promotion) isNode(ctx context.Context, db *sql.DB) (bool, error) {
	var name string
	err := db.QueryRowContext(ctx, "SELECT name FROM cellog_meta.cluster WHERE id = 1").Scan(&name)
	switch {
	case mysqlconn.IsMissing(err), errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	case name != p.req.Cluster:
		return false, fmt.Errorf("the server says that it belongs to cluster %q (cellog_meta.cluster)", name)
	}
	return true, nil
}
