package life

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/record"
	"github.com/cellog/cellog/tests/harness"
	"github.com/cellog/cellog/triggers"
)

// What the file holds, summed with exact decimals.
const (
	trips   = 6433
	unpaid  = 44 // trips without a payment
	byCard  = "91866.10"
	byCash  = "26594.45"
	unknown = "664.42"
	total   = "119124.97"
)

var wantSums = map[string]string{"credit card": byCard, "cash": byCash, "": unknown}

// trip is what the tests read of a BASE cell.
type trip struct {
	Payment string      `json:"payment"`
	Total   json.Number `json:"total"`
}

// sums adds up totals by payment.
type sums map[string]*money

func (s sums) add(t *testing.T, payment, amount string) {
	t.Helper()
	if s[payment] == nil {
		s[payment] = new(money)
	}
	s[payment].add(t, amount)
}

func (s sums) check(t *testing.T, where string) {
	t.Helper()
	got, all := make(map[string]string), new(money)
	for k, m := range s {
		got[k] = m.String()
		all.Add(&all.Rat, &m.Rat)
	}
	if diff := cmp.Diff(wantSums, got); diff != "" {
		t.Errorf("%s: totals by payment (-want +got):\n%s", where, diff)
	}
	if all.String() != total {
		t.Errorf("%s: total %s, want %s", where, all, total)
	}
}

// TestTaxiTrips takes the trips from a file to HTTP, MySQL, Kafka, a trigger
// that writes, and an index, and finds the same money everywhere.
func TestTaxiTrips(t *testing.T) {
	d := newDev(t)
	d.start(t)
	stop := runStatusTrigger(t, d)

	if st := importTrips(t, d); st.Created+st.Same != trips { // a retried batch finds its own cells
		t.Fatalf("import: %+v, want %d created", st, trips)
	}
	if st := importTrips(t, d); st.Created != 0 || st.Same != trips {
		t.Fatalf("import again: %+v, want %d same", st, trips)
	}

	t.Run("kafka", func(t *testing.T) { checkTopics(t, d) })
	t.Run("index", func(t *testing.T) { checkIndex(t, d) })
	t.Run("http", func(t *testing.T) { checkLog(t, d) })
	stop()
	t.Run("verify", func(t *testing.T) { verify(t, d, 2*trips) })

	d.stop(t)
	d.start(t) // the data is still there
	t.Run("restarted", func(t *testing.T) {
		checkTopics(t, d)
		checkIndex(t, d)
		verify(t, d, 2*trips)
	})
	d.stop(t)
}

type imported struct{ Created, Same, Buffered, Conflict, Bad int }

func importTrips(t *testing.T, d *dev) (st imported) {
	t.Helper()
	// An import whose time was up is gone on with by running it again.
	for range 5 {
		out, code := harness.Cellog(t, "import", "trips", "testdata/nyc-taxi-trips-2019-03.csv", "--url", d.HTTP, "--column", "BASE",
			"--row-key-uuid5", "*,_line", "--ref-key", "1", "--type", "passengers:int64", "--type", "distance:decimal", "--type", "fare:decimal",
			"--type", "tip:decimal", "--type", "tolls:decimal", "--type", "total:decimal", "--timeout", "2m", "--format", "json")
		if err := json.Unmarshal([]byte(out), &st); err != nil {
			t.Fatalf("import: exit %d, %v: %s", code, err, out)
		}
		if code == 0 {
			return st
		}
	}
	t.Fatal("import: not done after five times")
	return st
}

// runStatusTrigger writes a STATUS cell per paid trip and a NOTES cell per
// other one. The returned function stops it.
func runStatusTrigger(t *testing.T, d *dev) (stop func()) {
	t.Helper()
	rt, err := triggers.New(triggers.Config{Brokers: d.Kafka, Prefix: d.prefix()})
	if err != nil {
		t.Fatal(err)
	}
	c := d.client(t)
	err = rt.On("trips", "BASE", "status", func(ctx context.Context, cell cellog.Cell) error {
		var tr trip
		if err := json.Unmarshal(cell.Body, &tr); err != nil {
			return err
		}
		put := cellog.Put{Key: cellog.Key{Row: cell.Row, Column: "STATUS", Ref: 1}}
		var err error // of this cell: functions run in parallel
		put.Body, err = json.Marshal(map[string]any{"state": "paid", "by": tr.Payment, "total": tr.Total})
		if tr.Payment == "" {
			put.Column = "NOTES"
			put.Body, err = json.Marshal(map[string]any{"note": "no payment recorded", "total": tr.Total})
		}
		if err != nil {
			return err
		}
		_, err = c.Put(ctx, "trips", put)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("trigger: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// readTopic reads a topic from offset zero, as any consumer would, and checks
// what each record claims of itself.
func readTopic(t *testing.T, d *dev, column string) []cellog.Cell {
	t.Helper()
	c := d.consumer(t)
	spans, err := c.Spans(t.Context(), kafka.FromZero(), cellog.TopicName(d.prefix(), "trips", column))
	if err != nil {
		t.Fatal(err)
	}
	var cells []cellog.Cell
	sequences, ids := make(map[cellog.ShardID]cellog.Sequence), make(map[cellog.ShardID]cellog.AddedID)
	err = c.Read(t.Context(), spans, func(r kafka.Delivery) error {
		cell, err := record.Decode(r.Record)
		if err != nil {
			return err
		}
		sequences[cell.Shard]++
		switch {
		case cell.Sequence != sequences[cell.Shard]:
			return fmt.Errorf("%s: ce_sequence %d, want %d", cell.ID(), cell.Sequence, sequences[cell.Shard])
		case cell.AddedID <= ids[cell.Shard]:
			return fmt.Errorf("%s comes after added_id %d", cell.ID(), ids[cell.Shard])
		case cell.Shard != cellog.ShardOf(cell.Row, shards) || r.Partition.Partition != cellog.PartitionOf(cell.Shard, shards):
			return fmt.Errorf("%s is in partition %d", cell.ID(), r.Partition.Partition)
		}
		ids[cell.Shard] = cell.AddedID
		cells = append(cells, cell)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return cells
}

func checkTopics(t *testing.T, d *dev) {
	want := map[string]int{"BASE": trips, "STATUS": trips - unpaid, "NOTES": unpaid}
	harness.WaitFor(t, 3*time.Minute, func() error {
		for column, n := range want {
			if got := len(readTopic(t, d, column)); got != n {
				return fmt.Errorf("%s: %d records, want %d", column, got, n)
			}
		}
		return nil
	})
	s := make(sums)
	for _, cell := range readTopic(t, d, "BASE") {
		var tr trip
		if err := json.Unmarshal(cell.Body, &tr); err != nil {
			t.Fatal(err)
		}
		s.add(t, tr.Payment, tr.Total.String())
	}
	s.check(t, "Kafka")
}

func checkIndex(t *testing.T, d *dev) {
	c := d.client(t)
	harness.WaitFor(t, 3*time.Minute, func() error {
		s, n := make(sums), 0
		for payment := range maps.Keys(wantSums) {
			q := url.Values{"payment": {payment}, "limit": {"1000"}}
			for {
				raw, err := c.IndexQuery(t.Context(), "trips", "payment_index", q)
				if err != nil {
					return err
				}
				var page struct {
					Entries []struct {
						RowKey string      `json:"row_key"`
						Total  json.Number `json:"total"`
					} `json:"entries"`
					Next *string `json:"next"`
				}
				if err := json.Unmarshal(raw, &page); err != nil {
					return err
				}
				for _, e := range page.Entries {
					s.add(t, payment, e.Total.String())
					n++
				}
				if page.Next == nil {
					break
				}
				q.Set("cursor", *page.Next)
			}
		}
		if n != trips {
			return fmt.Errorf("index: %d entries, want %d", n, trips)
		}
		s.check(t, "index")
		return nil
	})
}

// checkLog reads the shards' logs up to what is final there. A worker hears of
// that in its own time: what the index has may not be final for it yet.
func checkLog(t *testing.T, d *dev) {
	c := d.client(t)
	s, n := make(sums), 0
	queries := make([]client.LogQuery, shards)
	for shard := range queries {
		queries[shard] = client.LogQuery{Shard: cellog.ShardID(shard), Column: "BASE", Limit: 1000}
	}
	harness.WaitFor(t, time.Minute, func() error {
		for shard := range queries {
			q := &queries[shard]
			for {
				page, err := c.Log(t.Context(), "trips", *q)
				if err != nil {
					return err
				}
				for _, cell := range page.Cells {
					var tr trip
					if err := json.Unmarshal(cell.Body, &tr); err != nil {
						t.Fatal(err)
					}
					s.add(t, tr.Payment, tr.Total.String())
					q.After = cell.AddedID
					n++
				}
				if len(page.Cells) == 0 {
					break
				}
			}
		}
		if n < trips {
			return fmt.Errorf("HTTP log: %d cells, want %d", n, trips)
		}
		return nil
	})
	s.check(t, "HTTP log")
}

// report is what `cellog verify --format json` prints.
type report struct {
	Shards       int `json:"shards"`
	Cells        int `json:"cells"`
	Records      int `json:"records"`
	Missing      int `json:"missing"`
	Duplicates   int `json:"duplicates"`
	OutOfOrder   int `json:"out_of_order"`
	Holes        int `json:"holes"`
	BodyMismatch int `json:"body_mismatch"`
	Indexes      []struct {
		Name    string `json:"name"`
		Entries int    `json:"entries"`
		Missing int    `json:"missing"`
		Stale   int    `json:"stale"`
		Extra   int    `json:"extra"`
	} `json:"indexes"`
}

// verify runs `cellog verify` until index and stream have caught up, which
// must be soon, and checks the counts.
func verify(t *testing.T, d *dev, cells int) {
	t.Helper()
	harness.WaitFor(t, 3*time.Minute, func() error {
		out, code := harness.Cellog(t, "verify", "trips", "--config", d.config(t), "--format", "json")
		var r report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			return fmt.Errorf("verify: exit %d: %w", code, err)
		}
		switch {
		case code != 0:
			return fmt.Errorf("verify: exit %d: %s", code, out)
		case r.Shards != shards || r.Cells != cells || r.Records != cells:
			return fmt.Errorf("verify: want %d cells and records: %s", cells, out)
		case len(r.Indexes) != 1 || r.Indexes[0].Entries == 0:
			return errors.New("verify: no index: " + out)
		}
		return nil
	})
}
