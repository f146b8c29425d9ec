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
	} {
		t.Run(name, func(t *testing.T) {
			c := newChaos(t, harness.Seed(t), p.broken)
			found := p.run(c)
			if found == nil {
				t.Fatal("nothing was found")
			}
			t.Logf("found: %.500v", found)
		})
	}
}

// writeOn only writes.
func writeOn(c *chaos) error {
	if err := c.l.calm(300); err != nil {
		return err
	}
	c.l.end()
	v, findings := c.check(plantedTime)
	if v.lost()+v.Holes+v.OutOfOrder == 0 {
		return nil
	}
	return errors.Join(findings...)
}

// thawTailer freezes a tailer that has sent cells and not flushed them, until
// the other one has taken over.
func thawTailer(c *chaos) error {
	if err := os.WriteFile(c.r.stopFile(), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	var frozen *process
	harness.WaitFor(c.t, fires, func() error {
		for _, p := range c.r.role("tailer") {
			if _, err := os.Stat(c.r.stopFile() + "." + p.name + ".yml"); err == nil {
				frozen = p
				return nil
			}
		}
		return errors.New("no tailer has come to flush")
	})
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
	v, findings := c.check(plantedTime)
	if v.Duplicates == 0 {
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
