package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/schemas/record"
	"github.com/cellog/cellog/tests/harness"
)

// promoted is what `cellog cluster promote` prints.
type promoted struct {
	Node                    string
	Term                    cellog.Term
	Restored, Drained, Lost int
	Left                    map[string]string
	Seconds                 float64
}

// promotion is a master being replaced by another node of its cluster.
type promotion struct {
	c       *chaos
	old     local.Node
	cluster int
	name    string
	term    cellog.Term // before it, or the highest epoch of a shard
	events  *kgo.Client
	first   chan time.Time // when the first cell of a newer epoch came
	did     promoted
}

// replace begins to replace a master, which still answers.
func (c *chaos) replace(old local.Node) (*promotion, error) {
	_, cluster := c.r.masterOf(old.Name)
	p := &promotion{c: c, old: old, cluster: cluster, name: old.Name[:2], first: make(chan time.Time, 1)}
	var topics []string
	for _, column := range columns {
		topics = append(topics, cellog.TopicName(c.r.config.Kafka.Prefix, "trips", column))
	}
	var logs []string
	for _, s := range c.r.shardsOf(old.Name) { // one that moved here may be of a higher epoch than the term
		logs = append(logs, "SELECT GREATEST(term, epoch) AS n FROM "+cellog.DatabaseName("trips", s)+".shard_log")
	}
	err := ask(c.t.Context(), old, "SELECT MAX(n) FROM ("+strings.Join(logs, " UNION ALL ")+") AS logs", &p.term)
	if err != nil {
		return nil, err
	}
	p.events, err = kgo.NewClient(kgo.SeedBrokers(c.r.config.Kafka.Brokers...), kgo.ConsumeTopics(topics...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		return nil, err
	}
	go p.listen()
	c.r.gone[old.Name] = true
	return p, nil
}

func (p *promotion) close() { p.events.Close() }

// listen ends when the client is closed, or has found what it looks for.
func (p *promotion) listen() {
	for {
		fetches := p.events.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		for r := range fetches.RecordsAll() {
			cell, err := decode(r)
			if err == nil && cell.Epoch > cellog.Epoch(p.term) && p.c.r.owners.clusterOf(cell.Row) == p.cluster {
				p.first <- time.Now()
				return
			}
		}
	}
}

func decode(r *kgo.Record) (cellog.Cell, error) {
	out := record.Record{Key: r.Key, Value: r.Value, Time: r.Timestamp}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, record.Header{Key: h.Key, Value: h.Value})
	}
	return record.Decode(out)
}

// promoter is `cellog cluster promote`, or its broken form.
func (c *chaos) promoter(ctx context.Context, cluster string) *exec.Cmd {
	if b := c.r.broken; b.role == "promote" {
		text, err := json.Marshal(child{Kind: b.role, Config: c.r.admin, Cluster: cluster, Plant: b.point})
		if err != nil {
			panic(err)
		}
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+string(text))
		return cmd
	}
	return exec.CommandContext(ctx, harness.Binary, "cluster", "promote", cluster, "--config", c.r.admin, "--format", "json")
}

// lines calls f with each line that is written to it.
type lines struct {
	rest string
	f    func(string)
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest += string(b)
	for {
		line, rest, ok := strings.Cut(l.rest, "\n")
		if !ok {
			return len(b), nil
		}
		l.rest = rest
		l.f(line)
	}
}

// promote promotes as an operator does: again, if it fails. said is told each
// step.
func (c *chaos) promote(cluster string, said func(step string)) (did promoted, err error) {
	err = harness.Poll(c.t, 3*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
		defer cancel()
		cmd := c.promoter(ctx, cluster)
		var last string
		cmd.Stderr = &lines{f: func(s string) {
			last = s
			if said != nil {
				said(s)
			}
		}}
		out, err := cmd.Output()
		if err != nil {
			c.t.Logf("  promotion of %s: %v: %s", cluster, err, last)
			return fmt.Errorf("promote %s: %w: %s", cluster, err, last)
		}
		return json.Unmarshal(out, &did)
	})
	if err != nil {
		return did, err
	}
	for node := range did.Left {
		c.r.gone[node] = true // until it rejoins
	}
	if err := c.r.local.SetMaster(cluster, did.Node); err != nil {
		return did, err
	}
	c.r.replicateThroughLinks()
	return did, nil
}

// run promotes, and waits until cells are stored and published again.
func (p *promotion) run() error {
	c, began := p.c, time.Now()
	var err error
	if p.did, err = c.promote(p.name, nil); err != nil {
		return err
	}
	ended := time.Now()
	switch d := p.did; {
	case d.Node == p.old.Name:
		return fmt.Errorf("%s was promoted again", d.Node)
	case d.Term <= p.term:
		return fmt.Errorf("%s is open in term %d, before it was term %d", d.Node, d.Term, p.term)
	}
	if err := c.l.calm(20, p.cluster); err != nil {
		return err
	}
	select {
	case at := <-p.first:
		since := func(t time.Time) time.Duration { return max(0, at.Sub(t)).Round(10 * time.Millisecond) }
		c.first[c.kind] = max(c.first[c.kind], since(ended))
		c.t.Logf("  %s serves %s in term %d after %v: %d cells from Kafka, %d from copies; its first event came %v after the promotion, %v after its begin",
			p.did.Node, p.name, p.did.Term, ended.Sub(began).Round(10*time.Millisecond), p.did.Restored, p.did.Drained, since(ended), since(began))
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("no cell of %s came to Kafka after the promotion to term %d", p.name, p.did.Term)
	}
	return nil
}

// rejoin brings all nodes that do not follow the new master back.
func (p *promotion) rejoin() error {
	c := p.c
	for _, node := range slices.Sorted(maps.Keys(p.did.Left)) {
		// Cells that only it has were not acknowledged: either is right.
		errant := []string{"put", "drop"}[c.rng.IntN(2)]
		err := harness.Poll(c.t, 3*time.Minute, func() error {
			out, why, code := harness.Try(c.t, "cluster", "rejoin", p.name, node, "--config", c.r.admin, "--errant", errant, "--format", "json")
			if code != 0 {
				return fmt.Errorf("rejoin %s: exit %d: %.1000s", node, code, why)
			}
			var did struct {
				Rebuilt                          bool
				Put, Conflicts, Copies, Rejected int
				Rows                             int64
				Seconds                          float64
				Errant                           []json.RawMessage
			}
			if err := json.Unmarshal([]byte(out), &did); err != nil {
				return err
			}
			c.t.Logf("  %s follows again after %.1f s: rebuilt %v (%d rows), %d errant cells (%s: %d in, %d conflicts), %d copies and %d rejected carried over",
				node, did.Seconds, did.Rebuilt, did.Rows, len(did.Errant), errant, did.Put, did.Conflicts, did.Copies, did.Rejected)
			return nil
		})
		if err != nil {
			return err
		}
		delete(c.r.gone, node)
	}
	if c.r.gone[p.old.Name] {
		return fmt.Errorf("the promotion did not leave %s behind: %v", p.old.Name, p.did.Left)
	}
	c.r.replicateThroughLinks()
	return nil
}

// loseMaster deletes a master's disk for ever; another node takes its place, and
// an empty server its address.
func loseMaster(c *chaos, _ time.Duration) error {
	p, err := c.replace(c.server(local.Master))
	if err != nil {
		return err
	}
	defer p.close()
	if err := c.r.loseDisk(p.old); err != nil {
		return err
	}
	if err := p.run(); err != nil {
		return err
	}
	if err := c.r.hasNoDisk(p.old); err != nil {
		return err
	}
	if err := c.r.bringBack(p.old); err != nil {
		return err
	}
	return p.rejoin()
}

// freezeAndReplace has a frozen master replaced and thaws it, under load.
func freezeAndReplace(c *chaos, length time.Duration) error {
	p, err := c.replace(c.server(local.Master))
	if err != nil {
		return err
	}
	defer p.close()
	thaw, err := harness.Freeze(p.old.PID)
	if err != nil {
		return err
	}
	defer thaw()
	if err := p.run(); err != nil {
		return err
	}
	thaw()
	time.Sleep(length / 2) // how long it lives beside the new one
	return p.rejoin()
}

// killPromoter kills a promotion at some moment; the next one takes over.
func killPromoter(c *chaos, _ time.Duration) error {
	p, err := c.replace(c.server(local.Master))
	if err != nil {
		return err
	}
	defer p.close()
	if err := c.r.takeDown(p.old); err != nil {
		return err
	}
	// It takes at least 3 s from its claim.
	limit := time.Duration(c.rng.IntN(3000)) * time.Millisecond
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	cmd, last := c.promoter(ctx, p.name), "nothing"
	cmd.Stderr = &lines{f: func(s string) { last = s }}
	if err := cmd.Run(); ctx.Err() == nil {
		return errors.Join(err, errors.New("the promotion ended before it was killed"))
	}
	c.t.Logf("  killed after %v: it had said %q", limit, last)
	if err := p.run(); err != nil {
		return err
	}
	if err := c.r.bringBack(p.old); err != nil {
		return err
	}
	return p.rejoin()
}
