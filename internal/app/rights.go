package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/storage/mysql"
)

// workingBesides are the working accounts that are not the admin's: a tool's
// configuration knows no others.
func workingBesides(a config.Accounts) mysqlaccounts.Set {
	set, admin := working(a), AdminAccount(a).User
	for _, w := range []*mysqlaccounts.Account{&set.Worker, &set.Tailer, &set.Indexer} {
		if w.User == admin {
			w.User = ""
		}
	}
	return set
}

// accountsThere returns an error that names the working accounts which a node
// does not have.
func accountsThere(ctx context.Context, c *config.Cluster, db *sql.DB) error {
	_, err := mysqlaccounts.Lacking(ctx, db, workingBesides(c.Accounts), nil)
	return err
}

// ensureRights gives the working accounts those rights on a node's shards that
// they lack there, as after a rebuild, without a trace in its binlog: that would
// be a transaction which its master has not. Where they have all, nothing is
// written.
func ensureRights(ctx context.Context, c *config.Cluster, node string) (err error) {
	cfg, err := adminConn(c, node)
	if err != nil {
		return err
	}
	cfg.MaxOpen, cfg.Session = 1, map[string]string{"sql_log_bin": "0"}
	db, err := mysqlconn.Open(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mysqlconn.Close(db)) }()
	heads, err := mysql.Heads(ctx, db)
	if err != nil {
		return err
	}
	shards := map[string][]cellog.ShardID{}
	for _, h := range heads {
		shards[h.Datastore] = append(shards[h.Datastore], h.Shard)
	}
	lacking, missing := mysqlaccounts.Lacking(ctx, db, workingBesides(c.Accounts), shards)
	if len(lacking) == 0 {
		return missing
	}
	restore, err := letAdminWrite(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	for _, q := range lacking {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", q, err), missing)
		}
	}
	return missing
}

// letAdminWrite is allowAdmin for a while. restore makes a MySQL server refuse
// administrators again, if it did and it is still read-only: it may have become
// the master meanwhile.
func letAdminWrite(ctx context.Context, db *sql.DB) (restore func() error, err error) {
	restore = func() error { return nil }
	s, err := mysqlreplica.Identity(ctx, db)
	if err != nil || s.MariaDB {
		return restore, err
	}
	var refuses bool
	if err := db.QueryRowContext(ctx, "SELECT @@global.super_read_only").Scan(&refuses); err != nil || !refuses {
		return restore, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), nodePatience)
		defer cancel()
		_, err := db.ExecContext(ctx, "SET GLOBAL super_read_only = @@global.read_only")
		return err
	}, allowAdmin(ctx, db)
}
