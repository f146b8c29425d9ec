package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// datastoreAcks gives storage the datastores' ack.
func datastoreAcks(cfg *config.Config) func(string) storage.Ack {
	return func(datastore string) storage.Ack {
		a, err := storage.ParseAck(cfg.Datastore(datastore).Ack)
		if err != nil {
			panic(err) // the configuration was checked
		}
		return a
	}
}

// opened reads the newest record of each cluster from Kafka. A cluster without one
// is left out. What is committed is enough: a claim and an open can be read by all
// before whoever wrote them goes on.
func opened(ctx context.Context, cfg *config.Config, env Env) (map[string]position.Cluster, error) {
	out := map[string]position.Cluster{}
	for i := range cfg.Clusters {
		c, err := openedOf(ctx, cfg, env, cfg.Clusters[i].Name)
		if err != nil {
			return nil, fmt.Errorf("positions of cluster %s: %w", cfg.Clusters[i].Name, err)
		}
		if c != nil {
			out[cfg.Clusters[i].Name] = *c
		}
	}
	return out, nil
}

func openedOf(ctx context.Context, cfg *config.Config, env Env, cluster string) (*position.Cluster, error) {
	p, err := publish.New(publish.Config{Kafka: kafkaConfig(cfg, env, "cellog-terms"), Cluster: cluster, Prefix: cfg.Kafka.Prefix, Logger: env.log()})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	pos, err := p.Positions(ctx)
	return pos.Cluster, err
}

// LoadTerms tells the open node of a cluster all clusters' terms, and so lets it
// hold copies of other clusters' cells. It must be called after the cluster's
// open is in Kafka: whoever claims another cluster's term after that looks up
// which node it has to tell. Doing it again does nothing.
func LoadTerms(ctx context.Context, cfg *config.Config, env Env, cluster string) error {
	all, err := opened(ctx, cfg, env)
	if err != nil {
		return err
	}
	own, ok := all[cluster]
	if !ok || own.State != position.Open {
		return fmt.Errorf("cluster %s is not open in Kafka", cluster)
	}
	var records []mysql.TermRecord
	for name, c := range all {
		records = append(records, mysql.TermRecord{Cluster: name, Term: c.Term, State: c.State, Node: c.Node, ServerUUID: c.ServerUUID})
	}
	db, err := openedNode(ctx, cfg, cluster, own)
	if err != nil {
		return err
	}
	// A MySQL server that was restarted refuses administrators' writes too.
	if err = allowAdmin(ctx, db); err == nil {
		err = mysql.LoadTerms(ctx, db, records)
	}
	return errors.Join(err, mysqlconn.Close(db))
}

// openedNode opens a pool to the node that a cluster's record names, with the
// admin account; it must be the server that was opened.
func openedNode(ctx context.Context, cfg *config.Config, cluster string, c position.Cluster) (*sql.DB, error) {
	cl, err := cfg.FindCluster(cluster)
	if err != nil {
		return nil, err
	}
	db, err := openAdmin(cl, c.Node)
	if err != nil {
		return nil, fmt.Errorf("term %d opened node %s: %w", c.Term, c.Node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*nodePatience)
	defer cancel()
	s, err := mysqlreplica.Identity(ctx, db)
	if err == nil && s.ID != c.ServerUUID {
		err = fmt.Errorf("term %d opened server %s, but it is %s now", c.Term, c.ServerUUID, s.ID)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node %s/%s: %w", cluster, c.Node, err), mysqlconn.Close(db))
	}
	return db, nil
}
