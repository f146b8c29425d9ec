package app

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/doctor"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// Inspect runs the doctor over all servers and brokers of a configuration.
func Inspect(ctx context.Context, cfg *config.Config, env Env) []doctor.Finding {
	in := inspection{cfg: cfg, env: env, datastores: map[string]storage.Datastore{}, told: map[string]map[string]doctor.Term{}}
	found := doctor.Copies(len(cfg.Clusters))
	s := doctor.Stream{Kafka: kafkaConfig(cfg, env, "cellog-doctor"), Prefix: cfg.Kafka.Prefix}
	for i := range cfg.Clusters {
		s.Clusters = append(s.Clusters, cfg.Clusters[i].Name)
		found = append(found, in.inspectCluster(ctx, &cfg.Clusters[i])...)
	}
	found = append(append(found, doctor.Machines(in.servers)...), doctor.Sources(in.servers)...)
	for _, d := range in.datastores {
		s.Datastores = append(s.Datastores, doctor.Datastore{Name: d.Name, Partitions: d.Partitions})
	}
	return append(append(found, in.compare(ctx)...), doctor.Kafka(ctx, s)...)
}

// inspection is what Inspect has learned of all clusters.
type inspection struct {
	cfg        *config.Config
	env        Env
	servers    []doctor.Server
	datastores map[string]storage.Datastore
	open       []doctor.OpenShard
	told       map[string]map[string]doctor.Term // by node: what writable ones were told
}

func (in *inspection) inspectCluster(ctx context.Context, c *config.Cluster) (found []doctor.Finding) {
	var servers []doctor.Server
	for _, n := range c.Nodes {
		db, err := openAdmin(c, n.Name)
		if err != nil {
			found = append(found, doctor.Finding{Where: n.Name, Check: "connection", Level: doctor.Bad, Found: err.Error(), Fix: "set clusters[].accounts.admin"})
			continue
		}
		f, s := doctor.MySQL(ctx, doctor.Node{Cluster: c.Name, Name: n.Name, Addr: n.Addr, DB: db, MaxBody: int64(in.cfg.Limits.BodyBytes)})
		found, servers = append(found, f...), append(servers, s)
		if s.Reached {
			found = append(found, in.inspectNode(ctx, c, n, s, db)...)
		}
		if err := db.Close(); err != nil {
			found = append(found, doctor.Finding{Where: n.Name, Check: "connection", Level: doctor.Warn, Found: err.Error()})
		}
	}
	in.servers = append(in.servers, servers...)
	return append(found, doctor.Cluster(c.Name, servers)...)
}

// inspectNode looks at a server's contents and accounts.
func (in *inspection) inspectNode(ctx context.Context, c *config.Cluster, n config.Node, s doctor.Server, db *sql.DB) (found []doctor.Finding) {
	heads, err := mysql.Heads(ctx, db)
	if err != nil {
		heads = nil // the admin's rights say why
	}
	shards := map[string][]cellog.ShardID{}
	for _, h := range heads {
		shards[h.Datastore] = append(shards[h.Datastore], h.Shard)
	}
	found = inspectAccounts(ctx, c, n, s, shards)
	if !s.Writable {
		return found
	}
	if len(heads) > 0 {
		found = append(found, inspectWorker(ctx, c, n, cellog.DatabaseName(heads[0].Datastore, heads[0].Shard))...)
	}
	for _, h := range heads {
		if h.Open() {
			in.open = append(in.open, doctor.OpenShard{Cluster: c.Name, Node: n.Name, Shard: cellog.DatabaseName(h.Datastore, h.Shard)})
		}
	}
	if all, err := mysql.DatastoresOf(ctx, db); err == nil {
		for _, d := range all {
			in.datastores[d.Name] = d
		}
	}
	records, err := mysql.Terms(ctx, db)
	if err != nil {
		if !mysqlconn.IsMissing(err) { // no datastore was made yet
			found = append(found, doctor.Finding{Where: n.Name, Check: "cellog_meta.terms", Level: doctor.Warn, Found: err.Error(), Why: "what it was told could not be read"})
		}
		return found
	}
	in.told[n.Name] = map[string]doctor.Term{}
	for _, r := range records {
		in.told[n.Name][r.Cluster] = doctor.Term{Term: int(r.Term), Opened: r.State == position.Open, Node: r.Node, Server: r.ServerUUID}
	}
	return found
}

// inspectAccounts looks at what the working accounts may do on a server. Any node
// may become master.
func inspectAccounts(ctx context.Context, c *config.Cluster, n config.Node, s doctor.Server, shards map[string][]cellog.ShardID) (found []doctor.Finding) {
	admin := AdminAccount(c.Accounts).User
	set := mysqlaccounts.Set{Replica: mysqlaccounts.Account{User: c.Accounts.Replica.User}}
	w := working(c.Accounts)
	set.Worker, set.Tailer, set.Indexer = w.Worker, w.Tailer, w.Indexer
	need := map[mysqlaccounts.Account][]mysqlaccounts.Right{}
	all := mysqlaccounts.ServerRights(set, s.MariaDB)
	for ds, of := range shards {
		all = append(all, mysqlaccounts.ShardRights(set, ds, of)...)
	}
	for _, r := range all {
		need[r.Account] = append(need[r.Account], r.Rights...)
	}
	for _, a := range []struct {
		role    string
		account config.Account
		need    []mysqlaccounts.Right
	}{
		{"admin", AdminAccount(c.Accounts), []mysqlaccounts.Right{mysqlaccounts.AdminRights(s.MariaDB)}},
		{"worker", c.Accounts.Worker, need[set.Worker]}, {"tailer", c.Accounts.Tailer, need[set.Tailer]},
		{"indexer", c.Accounts.Indexer, need[set.Indexer]}, {"replica", c.Accounts.Replica, need[set.Replica]},
	} {
		if a.account.User == "" || a.role != "admin" && a.account.User == admin {
			continue // not given, or a tool's configuration, which knows one account
		}
		db, err := mysqlconn.Open(mysqlconn.Config{Addr: n.Addr, User: a.account.User, Password: a.account.Password.Reveal(), MaxOpen: 1})
		if err != nil {
			found = append(found, doctor.Finding{Where: n.Name, Check: "the " + a.role + "'s account", Level: doctor.Bad, Found: err.Error(), Fix: "set clusters[].accounts." + a.role})
			continue
		}
		found = append(found, doctor.Rights(ctx, s, a.role, db, a.need))
		_ = mysqlconn.Close(db) // it was only asked
	}
	if c.Accounts.Replica.User == "" {
		found = append(found, doctor.Finding{Where: n.Name, Check: "the replica's account", Level: doctor.Warn, Found: "not given", Want: "an account of its own",
			Why: "a promotion cannot point minions at the new master, and rejoin cannot work", Fix: "set clusters[].accounts.replica"})
	}
	return found
}

func inspectWorker(ctx context.Context, c *config.Cluster, n config.Node, database string) []doctor.Finding {
	a := WorkerAccount(c.Accounts)
	if a.User == "" || a.User == AdminAccount(c.Accounts).User {
		return []doctor.Finding{{Where: n.Name, Check: "the worker's account", Level: doctor.Warn, Found: "not given", Want: "an account of its own",
			Why: "whether it may change cells was not tried", Fix: "set clusters[].accounts.worker, or give --config"}}
	}
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: n.Addr, User: a.User, Password: a.Password.Reveal(), MaxOpen: 1})
	if err != nil {
		return nil // inspectAccounts says so
	}
	found := doctor.Worker(ctx, n.Name, db, database)
	if err := db.Close(); err != nil {
		found = append(found, doctor.Finding{Where: n.Name, Check: "the worker's account", Level: doctor.Warn, Found: err.Error()})
	}
	return found
}

// compare holds what servers say of terms and shards against Kafka.
func (in *inspection) compare(ctx context.Context) (found []doctor.Finding) {
	newest, all := map[string]doctor.Term{}, map[string]cdc.Positions{}
	var clusters []string
	for _, c := range in.cfg.Clusters {
		pos, err := in.positions(ctx, c.Name)
		if err != nil {
			found = append(found, doctor.Finding{Where: c.Name, Check: "the opened node", Level: doctor.Warn, Found: err.Error(),
				Why: "its positions could not be read, so terms and owners were not compared", Fix: "start the brokers, or correct kafka.brokers and kafka.prefix"})
			break // the next one would wait as long
		}
		all[c.Name] = pos
		clusters = append(clusters, c.Name)
		var servers []doctor.Server
		for _, s := range in.servers {
			if s.Node.Cluster == c.Name {
				servers = append(servers, s)
			}
		}
		var record *doctor.Term
		if p := pos.Cluster; p != nil {
			t := doctor.Term{Term: int(p.Term), Opened: p.State == position.Open, Node: p.Node, Server: p.ServerUUID}
			newest[c.Name], record = t, &t
		}
		found = append(found, doctor.OpenedNode(c.Name, record, servers))
	}
	for _, s := range in.servers {
		if told, ok := in.told[s.Node.Name]; ok && len(in.cfg.Clusters) > 1 {
			found = append(found, doctor.Terms(s, told, newest, clusters, in.tellAgain())...)
		}
	}
	owners := map[string]string{}
	for _, pos := range all {
		for k := range pos.Shards {
			s, _ := publish.Newest(all, k)
			owners[cellog.DatabaseName(k.Datastore, k.Shard)] = s.Owner
		}
	}
	return append(found, doctor.Shards(in.open, owners)...)
}

// tellAgain is the command that tells every master all terms.
func (in *inspection) tellAgain() string {
	best := storage.Datastore{Name: "NAME"}
	for _, d := range in.datastores {
		if best.Shards == 0 || cmp.Compare(d.Name, best.Name) < 0 {
			best = d
		}
	}
	return fmt.Sprintf("cellog datastore create %s --shards %d --partitions %d (it is there: only the terms are told again)", best.Name, best.Shards, best.Partitions)
}

// positions are what Kafka says of a cluster.
func (in *inspection) positions(ctx context.Context, cluster string) (_ cdc.Positions, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*nodePatience)
	defer cancel()
	p, err := publish.New(publish.Config{Kafka: kafkaConfig(in.cfg, in.env, "cellog-doctor"), Cluster: cluster, Prefix: in.cfg.Kafka.Prefix, Logger: in.env.log()})
	if err != nil {
		return cdc.Positions{}, err
	}
	defer p.Close()
	pos, err := p.Positions(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no answer within %v", 2*nodePatience)
	}
	return pos, err
}
