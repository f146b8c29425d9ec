package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/heartbeat"
	"github.com/cellog/cellog/schemas/position"
)

// tailPatience is how long a look waits for a heartbeat to travel the path:
// several that a tailer which flows would have let through.
const tailPatience = 6 * time.Second

// The states of a cluster's stream.
const (
	TailFlowing    = "flowing"     // a heartbeat came through, and no shard stands still
	TailShards     = "shards stop" // a heartbeat came through, but shards stand still
	TailCatchingUp = "catching up" // no heartbeat came through yet, but cells did
	TailStuck      = "stuck"       // a tailer lives, and nothing came through
	TailNobody     = "no tailer"   // nothing came through, no sign of life either
	TailPaused     = "paused"      // by an operator
	TailNotOpen    = "not open"    // no node was opened, or a promotion goes on
	TailUnknown    = "unknown"     // Kafka did not answer
)

// TailStatus is how a cluster's cells get into Kafka, as Kafka and the servers
// tell it, without the tailer's own port.
type TailStatus struct {
	Cluster string `json:"cluster"`
	State   string `json:"state"`
	// Term and Opened are those of the cluster's record, Mark the tailer's.
	Term   int    `json:"term"`
	Opened string `json:"opened"`
	Mark   string `json:"tailer_mark,omitempty"`
	// Tailer is what the tailer said of itself with its last sign of life, which
	// came to Kafka SignOfLife seconds ago; nil where none came in an hour.
	Tailer     *heartbeat.Tailer `json:"tailer,omitempty"`
	SignOfLife *float64          `json:"sign_of_life_seconds"`
	// Heartbeat is the age in seconds of the last heartbeat that travelled from
	// the master to Kafka, nil where none did in an hour. Lag is how long it
	// took, or its age where the next one did not come.
	Heartbeat *float64 `json:"heartbeat_seconds"`
	Lag       *float64 `json:"lag_seconds"`
	// Cells is how many cells the opened node has that are not in Kafka, Worst
	// the shard with most of them.
	Cells int64     `json:"lag_cells"`
	Worst *ShardLag `json:"worst,omitempty"`
	// Still are the shards that stand still although cells wait.
	Still []ShardLag `json:"still,omitempty"`
	Pause *cdc.Pause `json:"pause,omitempty"`
	// Problems say what could not be looked at.
	Problems []string `json:"problems,omitempty"`
}

// ShardLag is how far a shard is behind, and why if its tailer says so.
type ShardLag struct {
	Shard  string         `json:"shard"`
	Stored cellog.AddedID `json:"stored"`
	Final  cellog.AddedID `json:"final"`
	Reason string         `json:"reason,omitempty"`
}

// Flows says whether cells get through, all of them.
func (s *TailStatus) Flows() bool { return s.State == TailFlowing || s.State == TailCatchingUp }

// TailStatuses looks at the streams of the clusters, or of all. It takes until a
// heartbeat of each has come through, at most six seconds: one that was written
// after the shards were looked at has all their cells before it, so a shard that
// is behind after it came stands still, whatever the clocks say.
func TailStatuses(ctx context.Context, cfg *config.Config, env Env, names []string) ([]TailStatus, error) {
	for _, name := range names {
		if _, err := cfg.FindCluster(name); err != nil {
			return nil, err
		}
	}
	first, err := seen(ctx, cfg, env)
	if err != nil { // no server answers
		first = &view{servers: err}
		first.positions, first.problem = everywhere(ctx, cfg, env)
	}
	var looks []*tailLook
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		if len(names) == 0 || slices.Contains(names, c.Name) {
			looks = append(looks, &tailLook{cfg: cfg, env: env, cluster: c, first: first, TailStatus: TailStatus{Cluster: c.Name}})
		}
	}
	var g errgroup.Group
	for _, l := range looks {
		g.Go(func() error { l.run(ctx); return nil })
	}
	_ = g.Wait() // no function returns an error
	out := make([]TailStatus, len(looks))
	for i, l := range looks {
		out[i] = l.TailStatus
	}
	return out, ctx.Err()
}

// tailLook looks at one cluster.
type tailLook struct {
	TailStatus
	cfg     *config.Config
	env     Env
	cluster *config.Cluster
	first   *view

	last       int64    // the heartbeat that was written last before the wait; 0: not known
	end        int64    // of the heartbeats' topic then
	came       bool     // one that was written after it
	beat, life beatSeen // the newest that came through, and the newest sign of life
}

type beatSeen struct {
	heartbeat.Beat
	at time.Time // when it came to Kafka
}

func (l *tailLook) problem(what string, err error) {
	l.Problems = append(l.Problems, fmt.Sprintf("%s: %v", what, err))
}

func (l *tailLook) run(ctx context.Context) {
	l.written(ctx)
	if l.first.problem != nil {
		l.State = TailUnknown
		l.problem("Kafka's positions", l.first.problem)
		return
	}
	if l.first.servers != nil {
		l.problem("servers", l.first.servers)
	}
	before := l.first.positions[l.Cluster]
	if err := l.await(ctx); err != nil {
		l.State = TailUnknown
		l.problem("Kafka's heartbeats", err)
		return
	}
	after, err := everywhere(ctx, l.cfg, l.env)
	if err != nil {
		l.State = TailUnknown
		l.problem("Kafka's positions", err)
		return
	}
	c := after[l.Cluster].Cluster
	if c != nil {
		l.Term, l.Opened, l.Mark = int(c.Term), c.Node, c.TailerMark
	}
	moved := l.shards(before, after)
	l.ages()
	switch {
	case c == nil || c.State != position.Open:
		l.State = TailNotOpen
	case l.Pause != nil && l.Pause.Paused:
		l.State = TailPaused
	case l.came && len(l.Still) > 0:
		l.State = TailShards
	case l.came:
		l.State = TailFlowing
	case moved:
		l.State = TailCatchingUp
	case l.SignOfLife != nil && *l.SignOfLife < tailPatience.Seconds():
		l.State = TailStuck
	default:
		l.State = TailNobody
	}
}

// written asks the nodes whether the cluster is paused, and which heartbeat was
// written last. It comes after the heads were read.
func (l *tailLook) written(ctx context.Context) {
	pools, err := openPools(&config.Config{Clusters: []config.Cluster{*l.cluster}}, AdminAccount, mysqlconn.Config{MaxOpen: 1})
	if err != nil {
		l.problem("servers", err)
		return
	}
	defer func() { _ = pools.close() }() // they were only asked
	s := servers{cluster: l.cluster, pools: pools}
	if p, err := s.paused(ctx); err != nil {
		l.problem("whether it is paused", err)
	} else if !p.At.IsZero() {
		l.Pause = &p
	}
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	masters, err := s.masters(ctx)
	if len(masters) == 0 {
		l.problem("no node takes writes", cmp.Or(err, errors.New("all are read-only")))
	}
	for _, name := range masters {
		var beat int64
		err := pools.get(l.Cluster, name).QueryRowContext(ctx, "SELECT COALESCE(MAX(beat), 0) FROM cellog_meta.heartbeats WHERE cluster = ?", l.Cluster).Scan(&beat)
		if err != nil {
			l.problem("heartbeats on node "+name, err)
		}
		l.last = max(l.last, beat)
	}
}

// await reads the heartbeats of the last minutes, and then new ones until one has
// come that was written after the look at the shards, or the patience is over.
func (l *tailLook) await(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*tailPatience)
	defer cancel()
	cfg := kafkaConfig(l.cfg, l.env, "cellog-tail")
	adm, err := kafka.NewAdmin(cfg)
	if err != nil {
		return err
	}
	defer adm.Close()
	topic := cellog.HeartbeatsTopicName(l.cfg.Kafka.Prefix)
	defer func() {
		if errors.Is(err, kafka.ErrUnknownTopic) {
			err = nil // nothing was ever published
		}
	}()
	first, err := adm.CommittedOffsets(ctx, topic)
	if err != nil {
		return err
	}
	from, err := adm.OffsetAt(ctx, topic, 0, time.Now().Add(-2*time.Minute))
	if err != nil {
		return err
	}
	l.end = first[0].End
	stop := time.Now().Add(tailPatience)
	for to := l.end; ; {
		if err := kafka.ReadRange(ctx, cfg, topic, 0, max(from, first[0].Start), to, l.saw); err != nil {
			return err
		}
		from = max(from, to)
		if l.came || time.Now().After(stop) {
			break
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		now, err := adm.CommittedOffsets(ctx, topic)
		if err != nil {
			return err
		}
		to = now[0].End
	}
	if l.beat.at.IsZero() { // a dead one is looked for in the whole topic, which is an hour
		return kafka.ReadRange(ctx, cfg, topic, 0, first[0].Start, l.end, l.saw)
	}
	return nil
}

// saw takes a heartbeat; they come in the topic's order.
func (l *tailLook) saw(f kafka.Fetched) error {
	b, err := heartbeat.Unmarshal(f.Value)
	if err != nil || b.Cluster != l.Cluster {
		return nil // one that cannot be read is none: nobody decides about cells by it
	}
	l.life = beatSeen{b, f.Time}
	if b.Beat == 0 {
		return nil
	}
	l.beat = l.life
	if l.last > 0 && b.Beat > l.last || l.last == 0 && f.Offset >= l.end {
		l.came = true
	}
	return nil
}

func (l *tailLook) ages() {
	age := func(t time.Time) *float64 { a := max(time.Since(t).Seconds(), 0); return &a }
	if !l.life.at.IsZero() {
		l.SignOfLife, l.Tailer = age(l.life.at), l.life.Tailer
	}
	if !l.beat.at.IsZero() {
		l.Heartbeat, l.Lag = age(l.beat.at), age(l.beat.WrittenAt)
		if l.came {
			took := max(l.beat.at.Sub(l.beat.WrittenAt).Seconds(), 0)
			l.Lag = &took
		}
	}
}

// shards holds the heads that were seen before the wait against the positions
// before and after it; moved says that anything was published meanwhile.
func (l *tailLook) shards(before cdc.Positions, after map[string]cdc.Positions) (moved bool) {
	var reasons map[string]string
	if t := l.life.Tailer; t != nil {
		reasons = t.Reasons
	}
	for k, stored := range l.first.stored(l.Cluster) {
		record, in := publish.Newest(after, k)
		if in != "" && record.Owner != l.Cluster {
			continue
		}
		then := before.Shards[k].Last
		moved = moved || record.Last > then
		behind := int64(stored - record.Last)
		if behind <= 0 {
			continue
		}
		s := ShardLag{Shard: k.String(), Stored: stored, Final: record.Last, Reason: reasons[k.String()]}
		l.Cells += behind
		if l.Worst == nil || behind > int64(l.Worst.Stored-l.Worst.Final) {
			l.Worst = &s
		}
		if l.came || record.Last == then {
			l.Still = append(l.Still, s)
		}
	}
	slices.SortFunc(l.Still, func(a, b ShardLag) int { return cmp.Compare(a.Shard, b.Shard) })
	return moved
}

// stored is up to where the cluster's opened node has its shards, or, where it
// does not answer, any node of the cluster.
func (v *view) stored(cluster string) map[cdc.ShardKey]cellog.AddedID {
	opened := ""
	if c := v.positions[cluster].Cluster; c != nil {
		opened = c.Node
	}
	all, master := map[cdc.ShardKey]cellog.AddedID{}, map[cdc.ShardKey]cellog.AddedID{}
	for _, n := range v.nodes {
		if n.cluster != cluster || n.err != nil {
			continue
		}
		for k, h := range n.heads {
			if h.Foreign() {
				continue
			}
			all[k] = max(all[k], h.Last)
			if n.node == opened {
				master[k] = h.Last
			}
		}
	}
	if len(master) > 0 {
		return master
	}
	return all
}
