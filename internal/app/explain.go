package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/doctor"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/position"
)

// Explanation says in words why the cells of a cluster, or of one shard, get
// into Kafka or do not, and which command helps.
type Explanation struct {
	TailStatus
	// Shard is the one asked about; nil where it was the whole cluster.
	Shard *ShardState `json:"shard,omitempty"`
	// Words are sentences, the verdict first.
	Words []string `json:"words"`
	// Help are commands, the best one first; none where all is well.
	Help []string `json:"help,omitempty"`
}

func (e *Explanation) say(format string, args ...any) {
	e.Words = append(e.Words, fmt.Sprintf(format, args...))
}

func (e *Explanation) help(command string) {
	if command != "" && !slices.Contains(e.Help, command) {
		e.Help = append(e.Help, command)
	}
}

// ExplainTail looks at a cluster's stream, or at one shard's where datastore is
// not empty. It runs the checks with which a tailer starts on every node, and
// the doctor's on the topics.
func ExplainTail(ctx context.Context, cfg *config.Config, env Env, cluster, datastore string, shard cellog.ShardID) (*Explanation, error) {
	statuses, err := TailStatuses(ctx, cfg, env, []string{cluster})
	if err != nil {
		return nil, err
	}
	e := &Explanation{TailStatus: statuses[0]}
	if datastore != "" {
		s, err := DescribeShard(ctx, cfg, env, datastore, shard)
		if err != nil {
			return nil, err
		}
		if s.Cluster != "" && s.Cluster != cluster {
			return nil, fmt.Errorf("shard %s belongs to cluster %s: ask for %s/%s/%d", cellog.DatabaseName(datastore, shard), s.Cluster, s.Cluster, datastore, shard)
		}
		e.Shard = &s
	}
	e.verdict()
	e.stopped()
	if e.Shard != nil {
		e.place()
	}
	e.nodes(ctx, cfg, env)
	e.topics(ctx, cfg, env)
	for _, p := range e.Problems {
		e.say("not known: %s", p)
	}
	return e, nil
}

// verdict says how the cluster's stream is.
func (e *Explanation) verdict() {
	name, list := e.Cluster, "cellog cluster list "+e.Cluster
	if e.State != TailFlowing && e.State != TailShards && e.Heartbeat != nil {
		defer func() {
			e.say("the last heartbeat that travelled from the master to Kafka came %.0f s ago; %d cells wait", *e.Heartbeat, e.Cells)
		}()
	}
	switch e.State {
	case TailFlowing:
		e.say("the stream of cluster %s flows: a heartbeat took %.3f s from the master to Kafka", name, *e.Lag)
	case TailShards:
		e.say("the stream of cluster %s flows, but %d of its shards stand still although cells wait", name, len(e.Still))
	case TailCatchingUp:
		e.say("the tailer of cluster %s is behind and publishes: %d cells are left", name, e.Cells)
	case TailPaused:
		e.say("cluster %s is %s", name, PauseWords(*e.Pause))
		e.help("cellog tail resume " + name)
	case TailNotOpen:
		e.say("cluster %s is not open in Kafka (term %d): nothing is tailed until a node is opened", name, e.Term)
		e.help(list)
		e.help("cellog cluster promote " + name)
	case TailNobody:
		e.say("no tailer of cluster %s is alive: none has given a sign of life lately", name)
		e.help("cellog tailer run --config FILE")
	case TailStuck:
		e.say("the stream of cluster %s stands still although its tailer is alive", name)
		e.help(list)
	default:
		e.say("how the stream of cluster %s is cannot be told", name)
		e.help("cellog doctor")
	}
	switch t := e.Tailer; {
	case t == nil:
	case t.Node != "":
		e.say("its tailer said %.0f s ago that it is %s, from node %s; node %s is opened in term %d", *e.SignOfLife, t.State, t.Node, e.Opened, e.Term)
	default:
		e.say("its tailer said %.0f s ago that it is %s and reads no node; node %s is opened in term %d", *e.SignOfLife, t.State, e.Opened, e.Term)
	}
}

// stopped says why shards stand still, as their tailer tells it.
func (e *Explanation) stopped() {
	for _, s := range e.Still {
		if e.Shard != nil && s.Shard != cellog.DatabaseName(e.Shard.Datastore, e.Shard.Shard) {
			continue
		}
		why := s.Reason
		if why == "" && e.Tailer != nil && e.Tailer.Stopped > 0 {
			why = "stopped; the tailer's /readyz and log say why"
		}
		if why == "" {
			why = "no shard of its is stopped by an error: it waits with the whole stream"
		}
		e.say("shard %s is final up to %d of %d: %s", s.Shard, s.Final, s.Stored, why)
		ds, n, ok := cellog.ParseDatabaseName(s.Shard)
		switch {
		case !ok || s.Reason == "":
		case strings.Contains(s.Reason, "cellog tailer repair"):
			e.help(fmt.Sprintf("cellog tailer repair --cluster %s --datastore %s --shard %d (its tailer must be stopped)", e.Cluster, ds, n))
		default:
			e.help("cellog verify " + ds)
			e.help("mend the cause, then restart the tailer: a stopped shard does not start again by itself")
		}
	}
}

// place says where the one shard stands.
func (e *Explanation) place() {
	s := e.Shard
	e.say("shard %s is %s on node %s, in epoch %d: final up to added_id %d of %d stored", cellog.DatabaseName(s.Datastore, s.Shard), s.State, s.Node, s.Epoch, s.Final, s.Stored)
	if s.Problem != "" {
		e.say("not known: %s", s.Problem)
	}
	for _, c := range s.Copies {
		switch {
		case c.Problem != "":
			e.say("node %s: %s", c.Node, c.Problem)
		case c.Cluster != e.Cluster:
			e.say("node %s of cluster %s has a copy (%s) up to %d", c.Node, c.Cluster, c.State, c.Last)
		default:
			e.say("node %s has it up to %d, in epoch %d", c.Node, c.Last, c.Epoch)
		}
	}
	if s.Final == s.Stored && e.Flows() {
		e.say("all of its cells are in Kafka")
	}
}

// nodes runs the checks with which a tailer starts.
func (e *Explanation) nodes(ctx context.Context, cfg *config.Config, env Env) {
	c := cfg.Cluster(e.Cluster)
	pub, err := publish.New(publish.Config{Kafka: kafkaConfig(cfg, env, "cellog-tail"), Cluster: c.Name, Prefix: cfg.Kafka.Prefix, Logger: env.log()})
	if err != nil {
		e.say("not known: %v", err)
		return
	}
	defer pub.Close()
	limited, cancel := context.WithTimeout(ctx, tailPatience)
	pos, err := pub.Standing(limited)
	cancel()
	if err != nil || pos.Cluster == nil {
		return // the verdict says so
	}
	if e.Shard != nil {
		k := cdc.ShardKey{Datastore: e.Shard.Datastore, Shard: e.Shard.Shard}
		p, ok := pos.Shards[k]
		pos.Shards = map[cdc.ShardKey]position.Shard{}
		if ok {
			pos.Shards[k] = p
		}
	}
	merged := func(ds string) bool { return cfg.Datastore(ds).MergedTopic }
	for _, n := range c.Nodes {
		db, err := openAdmin(c, n.Name)
		if err != nil {
			e.say("node %s: %v", n.Name, err)
			continue
		}
		limited, cancel := context.WithTimeout(ctx, 2*tailPatience)
		stops, err := cdc.Examine(limited, c.Name, cdc.Node{Name: n.Name, Entities: entities{db}}, pos, merged, pub.LastCells)
		switch {
		case err != nil && limited.Err() != nil:
			e.say("node %s cannot be tailed: no answer within %v", n.Name, 2*tailPatience)
		case err != nil:
			e.say("node %s cannot be tailed: %v", n.Name, err)
		case len(stops) == 0 && n.Name == pos.Cluster.Node && len(c.Nodes) > 1 && !cfg.Tailer.TailMaster && !pos.Cluster.Alone:
			e.say("node %s holds all that is final; as the master it is not tailed while the cluster has minions (tailer.tail_master)", n.Name)
		case len(stops) == 0:
			e.say("node %s holds all that is final, and can be tailed", n.Name)
		}
		for k, why := range stops {
			e.say("on node %s shard %s would stop: %v", n.Name, k, why)
		}
		if err != nil {
			e.help("cellog cluster list " + e.Cluster)
			e.help("cellog doctor")
		}
		cancel()
		_ = mysqlconn.Close(db) // it was only asked
	}
}

// topics says what the doctor finds of the topics that are needed.
func (e *Explanation) topics(ctx context.Context, cfg *config.Config, env Env) {
	s := doctor.Stream{Kafka: kafkaConfig(cfg, env, "cellog-tail"), Prefix: cfg.Kafka.Prefix, Clusters: []string{e.Cluster}}
	v, err := seen(ctx, cfg, env)
	if err != nil {
		return // the problems say so
	}
	for _, d := range v.datastores {
		if e.Shard == nil || e.Shard.Datastore == d.Name {
			s.Datastores = append(s.Datastores, doctor.Datastore{Name: d.Name, Partitions: d.Partitions})
		}
	}
	found, well := doctor.Kafka(ctx, s), 0
	for _, f := range found {
		if f.Level == doctor.OK {
			well++
			continue
		}
		e.say("%s: %s is %s", f.Where, f.Check, f.Found)
		e.help(f.Fix)
	}
	e.say("%d of %d checks of brokers and topics are well", well, len(found))
}
