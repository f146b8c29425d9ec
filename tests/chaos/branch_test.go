package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/tests/harness"
)

// errEarned says that a put was answered 201 by a side that was cut off.
var errEarned = errors.New("the side that was cut off earned a 201 after the promotion")

// cutOffWithWorker cuts a master and a worker off from all others; half of the
// times the worker still reaches those that hold copies.
func cutOffWithWorker(c *chaos, length time.Duration) error {
	return cutOff(c, length, c.rng.IntN(2) == 0)
}

func cutOff(c *chaos, length time.Duration, holders bool) error {
	p, err := c.replace(c.server(local.Master))
	if err != nil {
		return err
	}
	defer p.close()
	w := c.process("worker")
	var held []*harness.Link
	for _, l := range c.r.between(map[string]bool{p.old.Name: true, w.name: true}, nil) {
		if holders && l.From == w.name && l.To != "broker" && !strings.HasPrefix(l.To, p.name) {
			continue
		}
		held = append(held, l)
	}
	for _, l := range c.r.links {
		if l.From == "peers" { // whose they are cannot be told apart
			l.Set(harness.Cut)
			defer l.Set(harness.Pass)
		}
	}
	for _, l := range held {
		l.Set(harness.Silent)
		defer l.Set(harness.Pass)
	}
	if holders {
		c.t.Logf("  %s reaches the other cluster", w.name)
	}
	if err := p.run(); err != nil {
		return err
	}
	c.l.castOut(w.url, p.cluster)
	earned := c.rivals(p, w)
	time.Sleep(length / 2)
	if o := c.l.takeBack(); o.earned > 0 {
		earned = errors.Join(earned, fmt.Errorf("%w: %d of %d puts", errEarned, o.earned, o.tried))
	}
	fired := false
	for _, l := range held {
		fired = l.Fired() || fired
		l.Set(harness.Pass)
	}
	for _, l := range c.r.links {
		if l.From == "peers" {
			l.Set(harness.Pass)
		}
	}
	if !fired {
		return fmt.Errorf("nothing came over %v", held)
	}
	return errors.Join(earned, p.rejoin())
}

// rivals puts cells at the new master, and others under the same keys at the
// worker that was cut off together with the old one.
func (c *chaos) rivals(p *promotion, outcast *process) error {
	h := &http.Client{Timeout: 10 * time.Second}
	defer h.CloseIdleConnections()
	var others []*process
	for _, w := range c.r.role("worker") {
		if w != outcast {
			others = append(others, w)
		}
	}
	g, ctx := errgroup.WithContext(c.t.Context())
	for i := range 4 {
		rng := rand.New(rand.NewPCG(c.rng.Uint64(), uint64(i)))
		g.Go(func() error {
			a := newCell(rng)
			for c.r.owners.clusterOf(a.Key.Row) != p.cluster {
				a = newCell(rng)
			}
			for n := 0; a.Status != 200 && a.Status != 201; n++ {
				if ctx.Err() != nil || n == 100 {
					return fmt.Errorf("the new master takes no cell: last answer %d", a.Status)
				}
				a.Status = attempt(h, others[n%len(others)].url, a)
				if err := c.l.journal.Append(a); err != nil {
					return err
				}
			}
			b := a
			b.Body = []byte(`{"rival":true}`)
			b.Status = attempt(h, outcast.url, b)
			if err := c.l.journal.Append(b); err != nil {
				return err
			}
			if b.Status == 200 || b.Status == 201 {
				return fmt.Errorf("%w: two bodies under %s", errEarned, b.Key)
			}
			return nil
		})
	}
	return g.Wait()
}

// final is how many cells of a cluster are in Kafka for good.
func (c *chaos) final(cluster string) (sum int64, err error) {
	p, err := publish.New(publish.Config{Kafka: kafka.Config{Addrs: c.r.config.Kafka.Brokers}, Cluster: cluster, Prefix: c.r.config.Kafka.Prefix})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	pos, err := p.Positions(c.t.Context())
	for _, s := range pos.Shards {
		sum += int64(s.Last)
	}
	return sum, err
}

// behind stops replication on the minion of c1 that is not tailed, until Kafka
// has cells that it lacks.
func (c *chaos) behind() (master, tailed, lagging local.Node, err error) {
	master = c.r.local.Clusters()[0].Nodes[0]
	err = harness.Poll(c.t, 2*fires, func() error {
		tailed, lagging = local.Node{}, local.Node{}
		for _, n := range c.r.local.Clusters()[0].Nodes[1:] {
			var dumps int
			q := fmt.Sprintf("SELECT COUNT(*) FROM information_schema.processlist WHERE user = '%s' AND command LIKE 'Binlog Dump%%'", c.r.local.Accounts().Tailer.User)
			if err := ask(c.t.Context(), n, q, &dumps); err != nil {
				return err
			}
			if dumps > 0 && tailed.Name == "" {
				tailed = n
			} else {
				lagging = n
			}
		}
		if tailed.Name == "" || lagging.Name == "" {
			return errors.New("no minion of c1 is tailed, or all are")
		}
		return nil
	})
	if err != nil {
		return
	}
	c.t.Logf("  %s is tailed, %s stops", tailed.Name, lagging.Name)
	if err = run(c.t.Context(), lagging, spoken("STOP SLAVE", "STOP REPLICA")); err != nil {
		return
	}
	err = harness.Poll(c.t, 2*fires, func() error {
		has, err := c.heads(lagging.Name)
		if err != nil {
			return err
		}
		if in, err := c.final("c1"); err != nil || in < has+50 {
			return fmt.Errorf("%s has %d cells, Kafka %d: it is not behind (%w)", lagging.Name, has, in, err)
		}
		return nil
	})
	return
}

// loseTail deletes the disk of c1's master and takes the minion away that has
// all, so that cells are only in Kafka, from where the promotion takes them back.
func loseTail(c *chaos, _ time.Duration) error {
	master, tailed, _, err := c.behind()
	if err != nil {
		return err
	}
	p, err := c.replace(master)
	if err != nil {
		return err
	}
	defer p.close()
	if err := errors.Join(c.r.takeDown(tailed), c.r.loseDisk(master)); err != nil {
		return err
	}
	if err := p.run(); err != nil {
		return err
	}
	if p.did.Restored == 0 {
		return errors.New("no cell came back from Kafka")
	}
	if err := errors.Join(c.r.hasNoDisk(master), c.r.bringBack(master, tailed)); err != nil {
		return err
	}
	return p.rejoin()
}
