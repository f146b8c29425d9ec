package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/acks"
	"github.com/cellog/cellog/tests/harness"
)

// verified is what `cellog verify --acks` prints.
type verified struct {
	Cells, Records, Missing, Duplicates, Holes int
	OutOfOrder                                 int `json:"out_of_order"`
	BodyMismatch                               int `json:"body_mismatch"`
	Acks                                       acks.Report
}

// lost and untrue sum up what was found.
func (v verified) lost() int { return v.Missing + v.Acks.Lost }
func (v verified) untrue() int {
	return v.Acks.OtherBody + v.Acks.TwoBodies + v.Acks.Ghosts + v.Acks.Unnamed
}

// settled polls fn until it returns nil. What it says may change, for streams
// and minions take a while, longer on a busy machine: it fails once it has said
// the same for limit, or at last.
func (c *chaos) settled(limit, last time.Duration, fn func() error) error {
	began := time.Now()
	said, since := "", began
	for {
		err := fn()
		if err == nil {
			return nil
		}
		now := time.Now()
		if err.Error() != said {
			said, since = err.Error(), now
		}
		if now.Sub(since) > limit || now.Sub(began) > last {
			return fmt.Errorf("after %v: %w", now.Sub(began).Round(time.Second), err)
		}
		// Each look reads all there is: let them not be what it waits for.
		time.Sleep(min(time.Second, 20*time.Millisecond+now.Sub(began)/10))
	}
}

// check holds everything that is stored against what was answered, and gives
// what does not agree, and moves no more for limit, or at last, a name.
func (c *chaos) check(limit, last time.Duration) (v verified, findings []error) {
	c.t.Helper()
	note := func(err error) {
		if err != nil {
			c.t.Logf("found: %.300v", err) // now: the rest may take long
			findings = append(findings, err)
		}
	}
	note(c.settled(limit, last, func() error {
		out, why, code := harness.Try(c.t, "verify", "trips", "--config", c.r.file, "--acks", c.l.file, "--format", "json", "--wait", "5s")
		var now verified
		if err := json.Unmarshal([]byte(out), &now); err != nil {
			return fmt.Errorf("verify: exit %d: %s%s (%w)", code, why, out, err)
		}
		if v = now; code != 0 {
			return fmt.Errorf("verify: exit %d: %.2000s\n%s", code, why, out)
		}
		return nil
	}))
	note(c.settled(limit, last, c.sameEverywhere))
	note(c.settled(limit, last, c.boundOnce))
	note(c.settled(limit, last, c.seenByTrigger))
	return v, findings
}

// log is one server's copy of a shard's log.
type log struct {
	n, first, last, head int64
	sum                  uint64
}

// sameEverywhere checks that each shard's log is 1..n, and the same with the
// same added_ids, on every live server of its cluster.
func (c *chaos) sameEverywhere() error {
	master := map[cellog.ShardID]log{}
	for _, n := range c.r.nodes() { // masters come first
		for _, s := range c.r.shardsOf(n.Name) {
			db := cellog.DatabaseName("trips", s)
			var g log
			err := ask(c.t.Context(), n, "SELECT COUNT(*), COALESCE(MIN(added_id), 1), COALESCE(MAX(added_id), 0), (SELECT last_added_id FROM "+db+".shard_log), "+
				"BIT_XOR(CRC32(CONCAT_WS('/', added_id, epoch, HEX(row_key), column_name, ref_key, HEX(body), created_at))) FROM "+db+".entity", &g.n, &g.first, &g.last, &g.head, &g.sum)
			if err != nil {
				return err
			}
			if g.first != 1 || g.last != g.n || g.head != g.n {
				return fmt.Errorf("%s on %s has %d cells with added_ids %d to %d, and its log ends at %d", db, n.Name, g.n, g.first, g.last, g.head)
			}
			if m, ok := master[s]; !ok {
				master[s] = g
			} else if m != g {
				return fmt.Errorf("%s on %s is not what the master has: %+v, want %+v", db, n.Name, g, m)
			}
		}
	}
	return nil
}

// seenByTrigger checks that the trigger saw every cell and no others, and each
// row's cells of a column in the order in which they were added.
func (c *chaos) seenByTrigger() error {
	text, err := os.ReadFile(c.r.notes)
	if err != nil {
		return err
	}
	seen, latest := map[place]cellog.Key{}, map[lane]cellog.AddedID{}
	in := bufio.NewScanner(bytes.NewReader(text))
	for in.Scan() {
		var n note
		if err := json.Unmarshal(in.Bytes(), &n); err != nil {
			return fmt.Errorf("the trigger's notes: %w", err)
		}
		at := place{n.Shard, n.AddedID}
		if was, again := seen[at]; again {
			if was != n.Key {
				return fmt.Errorf("the trigger saw two cells %d of shard %d: %s and %s", n.AddedID, n.Shard, was, n.Key)
			}
			continue
		}
		seen[at] = n.Key
		of := lane{n.Key.Row, n.Key.Column}
		if n.AddedID < latest[of] {
			return fmt.Errorf("the trigger saw cell %d of shard %d (%s) after %d of the same row", n.AddedID, n.Shard, n.Key, latest[of])
		}
		latest[of] = n.AddedID
	}
	cells := 0
	for i, cl := range c.r.local.Clusters() {
		db, err := asRoot(cl.Nodes[0])
		if err != nil {
			return err
		}
		defer db.Close()
		for _, s := range c.r.owners.shards(i) {
			rows, err := db.QueryContext(c.t.Context(), "SELECT added_id, row_key, column_name, ref_key FROM "+cellog.DatabaseName("trips", s)+".entity ORDER BY added_id")
			if err != nil {
				return err
			}
			for rows.Next() {
				var row []byte
				var k cellog.Key
				at := place{shard: s}
				if err := rows.Scan(&at.id, &row, &k.Column, &k.Ref); err != nil {
					rows.Close()
					return err
				}
				copy(k.Row[:], row)
				if cells++; seen[at] != k {
					rows.Close()
					return fmt.Errorf("the trigger did not see cell %d of shard %d, %s", at.id, s, k)
				}
			}
			if err := rows.Close(); err != nil {
				return err
			}
		}
	}
	if len(seen) != cells {
		return fmt.Errorf("the trigger saw %d cells, there are %d", len(seen), cells)
	}
	return nil
}

// checkTheChecker plants untrue answers, which must be found.
func (c *chaos) checkTheChecker() {
	c.t.Helper()
	j, err := acks.Create(c.l.file)
	if err != nil {
		c.t.Fatal(err)
	}
	refused := newCell(c.rng)
	h := &http.Client{Timeout: 20 * time.Second}
	defer h.CloseIdleConnections()
	if got := attempt(h, c.l.urls[0], refused); got != 201 {
		c.t.Fatalf("a put: %d", got)
	}
	refused.Status = 503
	lost, gone := newCell(c.rng), newCell(c.rng)
	lost.Status, gone.Status = 201, 202
	for _, a := range []acks.Answer{refused, lost, gone} {
		if err := j.Append(a); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		c.t.Fatal(err)
	}
	var v verified
	out, code := harness.Cellog(c.t, "verify", "trips", "--config", c.r.file, "--acks", c.l.file, "--format", "json")
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 3 || v.Acks.Lost != 2 || v.Acks.Ghosts != 1 {
		c.t.Errorf("three planted answers: exit %d, %s (%v)", code, out, err)
	}
}
