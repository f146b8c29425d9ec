package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/verify"
)

// Config says on which cellog the demo plays, and how.
type Config struct {
	// URL is a worker's base URL. Required.
	URL string
	// Kafka says how to reach the brokers. Required.
	Kafka kafka.Config
	// Prefix is the topics' prefix.
	Prefix string
	// Datastore must exist, with the index of IndexName. Default "trips".
	Datastore string
	// Billing makes the command of the billing process: one that runs Billing
	// on the datastore's BASE cells, charges at the given URL, and ends at an
	// interrupt. Required.
	Billing func(gateway string) *exec.Cmd
	// Verify compares entity tables, Kafka and indexes at the end. Required.
	Verify func(ctx context.Context) (verify.Report, error)

	// For is how long the city lives. Default 60 s.
	For time.Duration
	// Seed makes the city.
	Seed uint64
	// Rate is how many trips end in a second. Default 100.
	Rate float64
	// Drain is how long the stream may take to come to rest. Default 90 s.
	Drain time.Duration

	// Out gets the table of what happens; nil: none.
	Out io.Writer
	// Live redraws the table in place, for a terminal; otherwise a line comes
	// every few seconds.
	Live bool
}

func (c Config) withDefaults() Config {
	c.Datastore = cmp.Or(c.Datastore, "trips")
	c.For = cmp.Or(c.For, 60*time.Second)
	c.Rate = cmp.Or(c.Rate, 100)
	c.Drain = cmp.Or(c.Drain, 90*time.Second)
	if c.Out == nil {
		c.Out = io.Discard
	}
	return c
}

func (c Config) validate() error {
	if c.URL == "" || len(c.Kafka.Addrs) == 0 || c.Billing == nil || c.Verify == nil {
		return errors.New("demo: URL, Kafka, Billing and Verify are required")
	}
	if err := c.CheckPlay(); err != nil {
		return err
	}
	return cellog.CheckDatastore(c.Datastore)
}

// CheckPlay returns an error unless For and Rate can be played as they are,
// so that a caller finds a typo before it starts servers. It knows no
// defaults: zero is refused.
func (c Config) CheckPlay() error {
	switch {
	case c.For < time.Second || c.For > 24*time.Hour:
		return fmt.Errorf("demo: it lasts %s: want 1 s to 24 h", c.For)
	case !(c.Rate > 0 && c.Rate <= 10000): // so that NaN is refused too
		return fmt.Errorf("demo: a rate of %g trips a second: want more than 0 and at most 10,000", c.Rate)
	}
	return nil
}

// Report is how a demo ended.
type Report struct {
	Seed    uint64         `json:"seed"`
	Seconds float64        `json:"seconds"`
	Trips   int            `json:"trips"`
	Cells   map[string]int `json:"cells"`   // answered for, by column; STATUS as in Kafka
	Records map[string]int `json:"records"` // in Kafka, by column
	// Twice counts records of a cell that had come before.
	Twice int `json:"records_twice"`
	// Drained says that everything came out in time.
	Drained bool `json:"drained"`

	// Puts is how long puts took. The others count from a trip's put answer:
	// until a committed reader of Kafka saw it, the gateway was asked, the
	// last STATUS was in Kafka, the index gave it. They hold the kills.
	Puts      Lag `json:"puts"`
	ToKafka   Lag `json:"to_kafka"`
	ToBilling Lag `json:"to_billing"`
	ToStatus  Lag `json:"to_status"`
	ToIndex   Lag `json:"to_index"`

	Kills   []Kill       `json:"kills"`
	Gateway GatewayStats `json:"gateway"`

	IndexQueries int `json:"index_queries"`
	IndexLate    int `json:"index_late"`
	IndexWrong   int `json:"index_wrong"`

	Verify   verify.Report `json:"verify"`
	Accounts *Accounts     `json:"accounts"`
	// OK: all came out once and in time, nothing differs, and a kill came
	// between a charge and its STATUS.
	OK bool `json:"ok"`
}

// ok decides OK.
func (r *Report) ok() bool {
	between := false
	for _, k := range r.Kills {
		between = between || !k.StatusWasThere
	}
	return r.Drained && r.Twice == 0 && r.IndexLate == 0 && r.IndexWrong == 0 && between &&
		r.Verify.Clean() && r.Accounts.Differences == 0
}

// demo is a run.
type demo struct {
	cfg     Config
	cells   *client.Client
	gateway *Gateway
	watch   *watch
	load    *load
	asker   *asker
	child   *child
	billing lags
	asked   int // acknowledged trips whose first charge was looked at
	began   time.Time
}

// Run plays the demo. An error means that it could not be played to its end;
// what it found is in the Report.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d := &demo{cfg: cfg, watch: newWatch(), asker: &asker{}, began: time.Now()}
	if d.cells, err = client.New(client.Config{URLs: []string{cfg.URL}}); err != nil {
		return nil, err
	}
	defer d.cells.Close()
	if d.gateway, err = StartGateway(cfg.Seed); err != nil {
		return nil, err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, d.gateway.Stop(stop))
	}()
	d.load = &load{cfg: cfg, cells: d.cells, watch: d.watch, stored: make(map[string]int)}
	d.child = &child{command: func() *exec.Cmd { return cfg.Billing(d.gateway.URL()) }, hasStatus: d.hasStatus, quit: make(chan struct{})}

	parts, stop := start(ctx)
	parts.run("billing", d.child.run)
	parts.run("watch", func(ctx context.Context) error { return d.watch.follow(ctx, cfg) })
	parts.run("index", func(ctx context.Context) error { return d.asker.run(ctx, cfg, d.cells, d.watch) })
	parts.run("table", d.show)
	parts.run("kills", d.killer)
	drained, err := d.play(parts.ctx)
	d.child.done()
	if err == nil {
		err = parts.wait("billing")
	}
	err = errors.Join(err, stop())
	if err != nil {
		return nil, err
	}
	return d.report(ctx, drained)
}

// play lets the city live and the stream come to rest.
func (d *demo) play(ctx context.Context) (drained bool, err error) {
	if err := d.load.run(ctx); err != nil {
		return false, err
	}
	fmt.Fprintf(d.cfg.Out, "the load has stopped; waiting for the stream to drain\n")
	for stop := time.Now().Add(d.cfg.Drain); ; {
		if d.drained() {
			return true, nil
		}
		if time.Now().After(stop) {
			return false, nil
		}
		if !sleepUntil(ctx, time.Now().Add(20*time.Millisecond)) {
			return false, context.Cause(ctx)
		}
	}
}

// drained says whether every cell that was put is in Kafka, and every trip
// has its last STATUS there.
func (d *demo) drained() bool {
	records, _, _, open := d.watch.counts()
	stored, _ := d.load.counts()
	for column, n := range stored {
		if records[column] < n {
			return false
		}
	}
	return open == 0
}

// killer arms the gateway at a third and at two thirds of the time.
func (d *demo) killer(ctx context.Context) error {
	for i := 1; i <= 2; i++ {
		if !sleepUntil(ctx, d.began.Add(d.cfg.For*time.Duration(i)/3)) {
			return nil
		}
		d.gateway.Arm(d.child.kill)
	}
	return nil
}

// hasStatus reads whether a charge's STATUS cell is there.
func (d *demo) hasStatus(ctx context.Context, key string) (bool, error) {
	k, err := statusKey(key)
	if err != nil {
		return false, err
	}
	_, err = d.cells.Get(ctx, d.cfg.Datastore, k, client.ReadOptions{})
	if client.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// statusKey returns the STATUS cell of a charge's key.
func statusKey(charge string) (cellog.Key, error) {
	if len(charge) < 38 || charge[36] != '/' {
		return cellog.Key{}, fmt.Errorf("charge key %.60q", charge)
	}
	row, err := uuid.Parse(charge[:36])
	if err != nil {
		return cellog.Key{}, fmt.Errorf("charge key %.60q: %w", charge, err)
	}
	ref, err := cellog.ParseRefKey(charge[37:])
	return cellog.Key{Row: row, Column: columnStatus, Ref: ref}, err
}

// lookAtBilling takes in when trips were first charged.
func (d *demo) lookAtBilling() {
	_, _, acked, _ := d.watch.counts()
	for d.asked < acked {
		t, at := d.watch.acknowledgedAt(d.asked)
		first, ok := d.gateway.FirstAsked(ChargeKey(t.Row, 1))
		if !ok {
			return // they come in no order, but each comes
		}
		d.billing.add(first.Sub(at))
		d.asked++
	}
}

// report compares everything at rest.
func (d *demo) report(ctx context.Context, drained bool) (*Report, error) {
	out := d.cfg.Out
	trips := d.watch.acknowledged()
	d.lookAtBilling()
	r := &Report{
		Seed: d.cfg.Seed, Seconds: d.cfg.For.Seconds(), Trips: len(trips), Drained: drained,
		Puts: d.load.puts.total(), ToKafka: d.watch.toKafka.total(), ToBilling: d.billing.total(),
		ToStatus: d.watch.toStatus.total(), ToIndex: d.asker.visible.total(),
		Kills: d.child.all(), Gateway: d.gateway.Stats(),
	}
	r.Cells, _ = d.load.counts()
	r.Records, r.Twice, _, _ = d.watch.counts()
	r.IndexQueries, r.IndexLate = d.asker.counts()

	fmt.Fprintf(out, "comparing entity tables, Kafka and indexes\n")
	var err error
	if r.Verify, err = d.cfg.Verify(ctx); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	fmt.Fprintf(out, "asking the index for every driver\n")
	asked, wrong, err := checkIndex(ctx, d.cells, d.cfg.Datastore, trips)
	if err != nil {
		return nil, err
	}
	r.IndexQueries, r.IndexWrong = r.IndexQueries+asked, wrong
	fmt.Fprintf(out, "reading every STATUS cell for the accounts\n")
	statuses, err := readStatuses(ctx, d.cells, d.cfg.Datastore, trips)
	if err != nil {
		return nil, err
	}
	for _, s := range statuses {
		r.Cells[columnStatus] += len(s)
	}
	r.Accounts = settle(trips, d.gateway.Books(), statuses)
	r.OK = r.ok()
	return r, nil
}
