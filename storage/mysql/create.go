package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/sqlfiles"
	"github.com/cellog/cellog/storage"
)

// CreateConfig says what CreateDatastore makes.
type CreateConfig struct {
	// Name is the datastore's name. Required.
	Name string
	// Shards is the number of its shards, fixed for ever. Required.
	Shards int
	// Partitions is the number of its topics' partitions; it must divide
	// Shards. Default: cellog.DefaultPartitions.
	Partitions int
	// Clusters are all storage clusters in the order of their numbers, with
	// accounts that may create databases. Required.
	Clusters []storage.Cluster
	// Grant, if set, is called after a database is made (cellog_meta,
	// cellog_buffer and each shard's), to let the working accounts in. It must
	// be fit to be called again for the same database, and from several
	// goroutines.
	Grant func(ctx context.Context, admin *sql.DB, database string) error
	// Progress, if set, is called after each shard, by one goroutine at a
	// time, with the number of shards that are done.
	Progress func(done, shards int)
	// Parallel is how many shards are made at a time. Default 8.
	Parallel int
}

// CreateDatastore makes the databases of a datastore: shard n on the master of
// cluster n mod len(Clusters). What is there already is left alone, so a call
// that was interrupted is finished by the same call. It returns
// storage.ErrShards if the datastore is recorded with other numbers.
func CreateDatastore(ctx context.Context, cfg CreateConfig) error {
	if err := cellog.CheckDatastore(cfg.Name); err != nil {
		return err
	}
	if err := cellog.CheckShards(cfg.Shards); err != nil {
		return err
	}
	if cfg.Partitions == 0 {
		cfg.Partitions = cellog.DefaultPartitions(cfg.Shards)
	}
	if err := cellog.CheckPartitions(cfg.Partitions, cfg.Shards); err != nil {
		return err
	}
	if len(cfg.Clusters) == 0 {
		return errors.New("storage/mysql: create: clusters: want at least one")
	}
	if cfg.Parallel <= 0 {
		cfg.Parallel = 8
	}
	masters := make([]*admin, len(cfg.Clusters))
	defer func() {
		for _, m := range masters {
			if m != nil {
				_ = m.db.Close() // nothing is pending on it
			}
		}
	}()
	for i, c := range cfg.Clusters {
		m, err := masterOf(ctx, c)
		if err != nil {
			return err
		}
		masters[i] = m
		if err := m.prepareServer(ctx, cfg, c.Name); err != nil {
			return fmt.Errorf("storage/mysql: create %s: cluster %q: %w", cfg.Name, c.Name, err)
		}
	}
	// The numbers are recorded before the first shard is made, so that a
	// second call with other ones is refused half-way too.
	for i, m := range masters {
		if err := m.record(ctx, cfg); err != nil {
			return fmt.Errorf("storage/mysql: create %s: cluster %q: %w", cfg.Name, cfg.Clusters[i].Name, err)
		}
	}
	return createShards(ctx, cfg, masters)
}

func createShards(ctx context.Context, cfg CreateConfig, masters []*admin) error {
	// One that is somewhere already stays there: it may have moved, or a cluster may
	// be new.
	on := map[cellog.ShardID][]int{}
	made := make([]map[string]bool, len(masters))
	for i, m := range masters {
		heads, err := Heads(ctx, m.db)
		if err == nil {
			made[i], err = m.made(ctx, heads)
		}
		if err != nil {
			return fmt.Errorf("storage/mysql: create %s: cluster %q: %w", cfg.Name, cfg.Clusters[i].Name, err)
		}
		for _, h := range heads {
			if h.Datastore == cfg.Name {
				on[h.Shard] = append(on[h.Shard], i)
			}
		}
	}
	var mu sync.Mutex
	done := 0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(cfg.Parallel)
	for n := range cfg.Shards {
		g.Go(func() error {
			places := on[cellog.ShardID(n)]
			if places == nil {
				places = []int{n % len(masters)}
			}
			for _, i := range places {
				database := cellog.DatabaseName(cfg.Name, cellog.ShardID(n))
				var err error
				if !made[i][database] {
					err = masters[i].createShard(ctx, database)
				}
				if err == nil {
					err = cfg.grant(ctx, masters[i].db, database)
				}
				if err != nil {
					return fmt.Errorf("storage/mysql: create %s: shard %d on cluster %q: %w", cfg.Name, n, cfg.Clusters[i].Name, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			if cfg.Progress != nil {
				cfg.Progress(done, cfg.Shards)
			}
			return nil
		})
	}
	return g.Wait()
}

// admin is a cluster's master, seen with an account that may create.
type admin struct {
	node storage.Node
	db   *sql.DB
}

// masterOf finds the writable node of a cluster.
func masterOf(ctx context.Context, c storage.Cluster) (*admin, error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("storage/mysql: create: %w", err)
	}
	var errs []error
	for _, n := range c.Nodes {
		db, err := mysqlconn.Open(mysqlconn.Config{Addr: n.Addr, User: n.User, Password: n.Password, Session: map[string]string{"time_zone": "'+00:00'"}})
		if err != nil {
			return nil, fmt.Errorf("storage/mysql: create: cluster %q, node %q: %w", c.Name, n.Name, err)
		}
		var readOnly bool
		err = db.QueryRowContext(ctx, "SELECT "+mysqlconn.ReadOnly).Scan(&readOnly)
		if err == nil && !readOnly {
			return &admin{n, db}, nil
		}
		if err == nil {
			err = errors.New("is read-only")
		}
		errs = append(errs, fmt.Errorf("node %q: %w", n.Name, err), db.Close())
	}
	return nil, fmt.Errorf("storage/mysql: create: cluster %q has no writable node: %w", c.Name, errors.Join(errs...))
}

// prepareServer makes what a server has once.
func (a *admin) prepareServer(ctx context.Context, cfg CreateConfig, cluster string) error {
	for _, database := range []string{"cellog_meta", "cellog_buffer"} {
		if _, err := a.db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS "+database); err != nil {
			return err
		}
	}
	if err := a.migrate(ctx, "cellog_meta", sqlfiles.Server()); err != nil {
		return err
	}
	if _, err := a.db.ExecContext(ctx, "INSERT IGNORE INTO cellog_meta.cluster (id, name) VALUES (1, ?)", cluster); err != nil {
		return err
	}
	var name string
	if err := a.db.QueryRowContext(ctx, "SELECT name FROM cellog_meta.cluster WHERE id = 1").Scan(&name); err != nil {
		return err
	}
	if name != cluster {
		return fmt.Errorf("the server says that it belongs to cluster %q (cellog_meta.cluster)", name)
	}
	for _, database := range []string{"cellog_meta", "cellog_buffer"} {
		if err := cfg.grant(ctx, a.db, database); err != nil {
			return err
		}
	}
	return nil
}

func (cfg *CreateConfig) grant(ctx context.Context, db *sql.DB, database string) error {
	if cfg.Grant == nil {
		return nil
	}
	if err := cfg.Grant(ctx, db, database); err != nil {
		return fmt.Errorf("grants on %s: %w", database, err)
	}
	return nil
}

// record enters the datastore, or checks that it is entered with these numbers.
func (a *admin) record(ctx context.Context, cfg CreateConfig) error {
	_, err := a.db.ExecContext(ctx, "INSERT IGNORE INTO cellog_meta.datastores (name, shards, partitions, created_at) VALUES (?, ?, ?, UTC_TIMESTAMP(6))",
		cfg.Name, cfg.Shards, cfg.Partitions)
	if err != nil {
		return err
	}
	var shards, partitions int
	if err := a.db.QueryRowContext(ctx, "SELECT shards, partitions FROM cellog_meta.datastores WHERE name = ?", cfg.Name).Scan(&shards, &partitions); err != nil {
		return err
	}
	if shards != cfg.Shards || partitions != cfg.Partitions {
		return fmt.Errorf("recorded with %d shards and %d partitions, asked for %d and %d: %w", shards, partitions, cfg.Shards, cfg.Partitions, storage.ErrShards)
	}
	return nil
}

// made returns which of the shards that have a log have all their migrations
// too. It asks for many at a time: a creation that is run again, over thousands
// of shards, is about the few that it lacks.
func (a *admin) made(ctx context.Context, heads []ShardHead) (map[string]bool, error) {
	files, err := fs.Glob(sqlfiles.Shard(), "*.sql")
	if err != nil {
		return nil, err
	}
	rows, err := a.db.QueryContext(ctx, "SELECT table_schema FROM information_schema.tables WHERE table_name = ?", goose.DefaultTablename)
	if err != nil {
		return nil, err
	}
	versioned := map[string]bool{}
	err = each(rows, func() error {
		var database string
		err := rows.Scan(&database)
		versioned[database] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	var parts []string
	for _, h := range heads {
		if database := cellog.DatabaseName(h.Datastore, h.Shard); versioned[database] {
			parts = append(parts, "SELECT '"+database+"' FROM `"+database+"`."+goose.DefaultTablename+" HAVING MAX(version_id) = "+strconv.Itoa(len(files)))
		}
	}
	out := map[string]bool{}
	for batch := range slices.Chunk(parts, shardsPerLook) {
		rows, err := a.db.QueryContext(ctx, strings.Join(batch, " UNION ALL "))
		if err != nil {
			return nil, err
		}
		err = each(rows, func() error {
			var database string
			err := rows.Scan(&database)
			out[database] = true
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (a *admin) createShard(ctx context.Context, database string) error {
	if _, err := a.db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS `"+database+"`"); err != nil {
		return err
	}
	if err := a.migrate(ctx, database, sqlfiles.Shard()); err != nil {
		return err
	}
	// A cluster that has seen promotions is of a later term: the newest that
	// its own server knows.
	_, err := a.db.ExecContext(ctx, "INSERT IGNORE INTO `"+database+"`.shard_log (id, epoch, term, state, last_added_id, last_created_at) "+
		"SELECT 1, ?, COALESCE(MAX(t.term), ?), 'open', 0, ? FROM cellog_meta.cluster AS c LEFT JOIN cellog_meta.terms AS t ON t.cluster = c.name WHERE c.id = 1",
		int(cellog.FirstEpoch), int(cellog.FirstTerm), time.Unix(0, 0).UTC())
	return err
}

// migrate brings a database to the newest version.
func (a *admin) migrate(ctx context.Context, database string, files fs.FS) (err error) {
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: a.node.Addr, User: a.node.User, Password: a.node.Password, Database: database, MaxOpen: 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := dropEmptyVersions(ctx, db); err != nil {
		return fmt.Errorf("migrations of %s: %w", database, err)
	}
	p, err := goose.NewProvider(goose.DialectMySQL, db, files)
	if err != nil {
		return fmt.Errorf("migrations of %s: %w", database, err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrations of %s: %w", database, err)
	}
	return nil
}

// dropEmptyVersions mends what goose cannot: it was cut off between making its
// table and the first row in it (MySQL commits each DDL statement by itself).
// Nothing else is there then, or the migrations find it there.
func dropEmptyVersions(ctx context.Context, db *sql.DB) error {
	n := 0
	err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+goose.DefaultTablename).Scan(&n)
	if mysqlconn.IsMissing(err) || err == nil && n > 0 {
		return nil
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "DROP TABLE "+goose.DefaultTablename)
	}
	return err
}
