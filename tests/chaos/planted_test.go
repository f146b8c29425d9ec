package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/tests/harness"
)

// plantedTime is how long a check of a broken cellog goes on finding faults.
const plantedTime = 10 * time.Second

// TestPlanted breaks cellog on purpose, and fails if the checks do not find it.
func TestPlanted(t *testing.T) {
	for name, p := range map[string]struct {
		broken
		// run returns what was found.
		run func(c *chaos) error
	}{
		"writes without the shard's lock":           {broken{role: "worker", point: "storage/unlocked"}, writeOn},
		"a thawed tailer that nothing fences":       {broken{role: "tailer", point: "publish/idempotent-only", stopAt: "tailer/before-flush"}, thawTailer},
		"copies go before their cells are in Kafka": {broken{role: "worker", point: "storage/settle-unfinal"}, loseCopies},
		"copies without a look at the term":         {broken{role: "worker", point: "storage/copies-of-any-term"}, earnForTheDeposed},
		"a promotion without the gate":              {broken{role: "promote", point: "promote/ungated"}, promoteTheLagging},
		"a promotion that fences no tailer":         {broken{role: "promote", point: "publish/unfenced", stopAt: "tailer/before-send-c1"}, promoteBesideTailer},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChaos(t, harness.Seed(t), 1, p.broken)
			found := p.run(c)
			if found == nil {
				t.Fatal("nothing was found")
			}
			t.Logf("found: %.500v", found)
		})
	}
}

// writeOn only writes. That a broken cellog hardly gets on is no finding.
func writeOn(c *chaos) error {
	if err := c.l.calm(15); err != nil {
		c.t.Fatal(err)
	}
	c.l.end()
	v, findings := c.check(plantedTime, plantedTime)
	if v.lost()+v.Holes+v.OutOfOrder == 0 {
		return nil
	}
	return errors.Join(findings...)
}

// thawTailer freezes a tailer that has sent cells and not flushed them, until
// the other one has taken over.
func thawTailer(c *chaos) error {
	frozen := c.stoppedTailer()
	seen := func() int {
		text, err := os.ReadFile(c.r.notes)
		if err != nil {
			c.t.Fatal(err)
		}
		return bytes.Count(text, []byte("\n"))
	}
	before := seen()
	harness.WaitFor(c.t, 4*fires, func() error {
		if n := seen(); n < before+500 {
			return fmt.Errorf("the trigger saw %d cells since %s was frozen: has the other one taken over?", n-before, filepath.Base(frozen.name))
		}
		return nil
	})
	if err := syscall.Kill(frozen.pid(), syscall.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
	if err := c.l.calm(500); err != nil {
		c.t.Fatal(err)
	}
	c.l.end()
	v, findings := c.check(plantedTime, plantedTime)
	if v.Duplicates == 0 {
		return nil
	}
	return errors.Join(findings...)
}

// stoppedTailer waits until a tailer has stopped itself at its failpoint.
func (c *chaos) stoppedTailer() (frozen *process) {
	c.t.Helper()
	if err := os.WriteFile(c.r.stopFile(), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	harness.WaitFor(c.t, fires, func() error {
		for _, p := range c.r.role("tailer") {
			if _, err := os.Stat(c.r.stopFile() + "." + p.name + ".yml"); err == nil {
				frozen = p
				return nil
			}
		}
		return errors.New("no tailer has come there")
	})
	return frozen
}

// earnForTheDeposed cuts a master off together with a worker that still reaches
// the other cluster's master, and promotes another one.
func earnForTheDeposed(c *chaos) error {
	err := cutOff(c, time.Second, true)
	if err != nil && !errors.Is(err, errEarned) {
		c.t.Fatal(err)
	}
	c.l.end()
	v, findings := c.check(plantedTime, plantedTime)
	if err == nil || v.untrue() == 0 {
		return nil
	}
	return errors.Join(append(findings, err)...)
}

// promoteTheLagging promotes a minion that lacks what is in Kafka.
func promoteTheLagging(c *chaos) error {
	master, tailed, _, err := c.behind()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := errors.Join(c.r.takeDown(tailed), c.r.loseDisk(master)); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.promote("c1", nil); err != nil {
		c.t.Fatal(err)
	}
	if err := c.l.calm(300); err != nil {
		c.t.Fatal(err)
	}
	c.l.end()
	v, findings := c.check(plantedTime, plantedTime)
	if v.Acks.Lost == 0 {
		return nil
	}
	return errors.Join(findings...)
}

// promoteBesideTailer replaces a master that is gone while the cluster's only
// tailer is frozen with cells that only it and its own node have still.
func promoteBesideTailer(c *chaos) error {
	tailers := c.r.role("tailer")
	// A tailer that starts anew would fence it: let the other one have c2 alone.
	other := tailers[1]
	text, err := os.ReadFile(filepath.Join(c.r.dir, other.name+".yml"))
	if err != nil {
		c.t.Fatal(err)
	}
	var cfg config.Config
	if err := yaml.Unmarshal(text, &cfg); err != nil {
		c.t.Fatal(err)
	}
	cfg.Tailer.Clusters = []string{"c2"}
	other.kill()
	c.r.write(other.name, cfg)
	other.start()
	other.await()
	if err := c.l.calm(50); err != nil {
		c.t.Fatal(err)
	}
	master, tailed, _, err := c.behind()
	if err != nil {
		c.t.Fatal(err)
	}
	frozen := c.stoppedTailer()
	if frozen != tailers[0] {
		c.t.Fatalf("%s is frozen, want %s", frozen.name, tailers[0].name)
	}
	if err := c.r.loseDisk(master); err != nil {
		c.t.Fatal(err)
	}
	c.r.linkOf("admin", tailed.Name).Set(harness.Cut) // only its tailer reaches it
	if _, err := c.promote("c1", nil); err != nil {
		c.t.Fatal(err)
	}
	if err := c.l.calm(100); err != nil {
		c.t.Fatal(err)
	}
	if err := syscall.Kill(frozen.pid(), syscall.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
	if err := c.l.calm(100); err != nil {
		c.t.Log(err) // broken is no finding: the checks are to find it
	}
	c.l.end()
	v, findings := c.check(plantedTime, plantedTime)
	if v.lost()+v.Duplicates == 0 {
		return nil
	}
	return errors.Join(findings...)
}

// loseCopies has copies wait for Kafka.
func loseCopies(c *chaos) error {
	err := copiesWithoutKafka(c, time.Second)
	if err != nil && !strings.Contains(err.Error(), "its copies are gone") {
		c.t.Fatal(err)
	}
	return err
}
