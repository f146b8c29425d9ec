package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/internal/verify"
)

func TestMain(m *testing.M) {
	code := m.Run()
	mysqltest.Stop()
	kafkatest.Shutdown()
	if code == 0 {
		if err := goleak.Find(kafkatest.LeftBehind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const definition = `table: driver_index
datastore: trips
column_defs:
  - column_key: BASE
    fields:
      - {field: driver, type: uuid}
      - {field: n, type: int64}
`

// configuration is what an operator would write for two clusters with a minion
// each.
func configuration(t *testing.T, clusters int) *config.Config {
	t.Helper()
	cfg, _ := configured(t, clusters)
	return cfg
}

// configured is configuration, with the servers.
func configured(t *testing.T, clusters int) (*config.Config, []*mysqltest.Set) {
	t.Helper()
	minions := make([]int, clusters)
	for i := range minions {
		minions[i] = 1
	}
	return configuredWith(t, minions)
}

// configuredWith is configured, with so many minions in each cluster.
func configuredWith(t *testing.T, minions []int) (*config.Config, []*mysqltest.Set) {
	t.Helper()
	var sets []*mysqltest.Set
	cfg := config.Default()
	cfg.Kafka.Brokers = kafkatest.Start(t).Addrs()
	cfg.Kafka.Prefix = kafkatest.Prefix(t) // Apache Kafka is shared by the tests
	cfg.Worker.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Tailer.HeartbeatInterval = 100 * time.Millisecond
	cfg.Indexer.Schemas = t.TempDir()
	if err := os.WriteFile(filepath.Join(cfg.Indexer.Schemas, "driver.yml"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	acc := func(a mysqlaccounts.Account) config.Account {
		return config.Account{User: a.User, Password: config.NewSecret(a.Password)}
	}
	a := mysqltest.Accounts
	for i, n := range minions {
		s := mysqltest.Cluster(t, n)
		sets = append(sets, s)
		c := config.Cluster{Name: fmt.Sprintf("c%d", i), Accounts: config.Accounts{Worker: acc(a.Worker), Tailer: acc(a.Tailer), Indexer: acc(a.Indexer), Admin: acc(a.Admin), Replica: acc(a.Replica)}}
		for j, n := range append([]*mysqltest.Node{s.Master}, s.Minions...) {
			c.Nodes = append(c.Nodes, config.Node{Name: fmt.Sprintf("c%d-n%d", i, j), Addr: n.Addr()})
		}
		cfg.Clusters = append(cfg.Clusters, c)
	}
	return &cfg, sets
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func waitFor(t *testing.T, max time.Duration, f func() error) {
	t.Helper()
	for stop := time.Now().Add(max); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(stop) {
			t.Fatalf("after %v: %v", max, err)
		}
	}
}

// A cell put over HTTP arrives in Kafka and in an index, and verify finds
// nothing to complain about.
func TestRolesTogether(t *testing.T) {
	cfg := configuration(t, 2)
	log := obs.NewLogger(testLog{t}, obs.LogConfig{Level: "warn"})
	env := Env{Log: log}
	ctx := t.Context()
	for range 2 { // a second create changes nothing
		if err := CreateDatastore(ctx, cfg, env, Create{Name: "trips", Shards: 4, Grant: true}); err != nil {
			t.Fatal(err)
		}
	}
	w, err := NewWorker(cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := NewTailers(cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	x, err := NewIndexer(cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	roles := []Role{w, tl, x}
	for _, r := range roles {
		if r.Ready(ctx) == nil {
			t.Errorf("%T is ready before it started", r)
		}
	}
	for range 2 {
		for _, r := range roles {
			if err := r.Start(ctx); err != nil {
				t.Fatalf("%T: %v", r, err)
			}
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for range 2 {
			for _, r := range roles {
				if err := r.Stop(ctx); err != nil {
					t.Errorf("%T: %v", r, err)
				}
			}
		}
		for _, r := range roles {
			if r.Start(ctx) == nil {
				t.Errorf("%T started after Stop", r)
			}
		}
	})
	for _, r := range roles {
		waitFor(t, 20*time.Second, func() error { return r.Ready(ctx) })
	}

	c, err := client.New(client.Config{URLs: []string{"http://" + w.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	driver := uuid.New()
	var puts []cellog.Put
	for i := range 200 {
		puts = append(puts, cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: fmt.Appendf(nil, `{"driver":%q,"n":%d}`, driver, i)})
	}
	results, err := c.PutBatch(ctx, "trips", puts)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Outcome != cellog.Created || r.Err != nil {
			t.Fatalf("put %d: %+v", i, r)
		}
	}
	res, err := c.Put(ctx, "trips", puts[0])
	if err != nil || res.Outcome != cellog.Same || res.AddedID != results[0].AddedID || res.Epoch != 1 {
		t.Errorf("the same again: %+v, %v", res, err)
	}
	other := puts[0]
	other.Body = []byte(`{}`)
	if res, err := c.Put(ctx, "trips", other); !client.IsConflict(err) || res.AddedID != results[0].AddedID {
		t.Errorf("another body: %+v, %v", res, err)
	}
	cell, err := c.Newest(ctx, "trips", puts[7].Key, client.ReadOptions{})
	if err != nil || cell.Key != puts[7].Key || string(cell.Body) != string(puts[7].Body) {
		t.Errorf("%+v, %v", cell, err)
	}
	row, err := c.Row(ctx, "trips", puts[7].Row, false, client.ReadOptions{})
	if err != nil || len(row.Cells) != 1 || string(row.Cells[0].Body) != string(puts[7].Body) {
		t.Errorf("%+v, %v", row, err)
	}

	var entries []json.RawMessage
	waitFor(t, 20*time.Second, func() error {
		answer, err := c.IndexQuery(ctx, "trips", "driver_index", url.Values{"driver": {driver.String()}, "n.gte": {"100"}, "limit": {"1000"}})
		if err != nil {
			return err
		}
		var v map[string]json.RawMessage
		if err := json.Unmarshal(answer, &v); err != nil {
			return err
		}
		if err := json.Unmarshal(v["entries"], &entries); err != nil {
			return fmt.Errorf("%w in %s", err, answer)
		}
		if len(entries) != 100 {
			return fmt.Errorf("%d entries", len(entries))
		}
		return nil
	})

	report, err := Verify(ctx, cfg, env, "trips", verify.Config{Detail: func(s string) { t.Log(s) }})
	if err != nil || !report.Clean() || report.Cells != 200 || report.Records != 200 ||
		len(report.Indexes) != 1 || report.Indexes[0] != (verify.Index{Name: "driver_index", Entries: 200}) {
		t.Errorf("%+v, %v", report, err)
	}
	total := 0
	for s := range 4 {
		waitFor(t, 10*time.Second, func() error { // the worker's own look at the positions
			p, err := c.Log(ctx, "trips", client.LogQuery{Shard: cellog.ShardID(s), Limit: 1000})
			if err == nil && len(p.Cells) == 0 {
				err = fmt.Errorf("shard %d has no final cells", s)
			}
			if err == nil {
				total += len(p.Cells)
			}
			return err
		})
	}
	if total != 200 {
		t.Errorf("the logs have %d final cells", total)
	}
	plantIndexFault(t, cfg)
	report, err = Verify(ctx, cfg, env, "trips", verify.Config{Wait: 300 * time.Millisecond})
	if err != nil || report.Clean() || report.Indexes[0] != (verify.Index{Name: "driver_index", Entries: 199, Missing: 1}) {
		t.Errorf("an index row is gone: %+v, %v", report, err)
	}
	d, err := Describe(ctx, cfg, env, "trips")
	if err != nil || d.Shards != 4 || len(d.Routes) != 4 || d.Routes[1].Cluster != "c1" || len(d.Columns) != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, f := range Inspect(ctx, cfg, env) {
		if f.Level == "bad" {
			t.Errorf("doctor: %+v", f)
		}
	}
}

// plantIndexFault removes one index entry behind the indexer's back.
func plantIndexFault(t *testing.T, cfg *config.Config) {
	t.Helper()
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		node, _, err := master(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		db, err := openAdmin(c, node)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for s := i; s < 4; s += len(cfg.Clusters) {
			res, err := db.ExecContext(t.Context(), "DELETE FROM `"+cellog.DatabaseName("trips", cellog.ShardID(s))+"`.idx_driver_index LIMIT 1")
			if err != nil {
				t.Fatal(err)
			}
			if n, err := res.RowsAffected(); err == nil && n == 1 {
				return
			}
		}
	}
	t.Fatal("no index entry to remove")
}

// A role that runs by itself has its probes up while its servers are away,
// becomes ready when they are there, and ends with its context.
func TestRun(t *testing.T) {
	cfg := configuration(t, 1)
	env := Env{Log: obs.NewLogger(testLog{t}, obs.LogConfig{Level: "error"})}
	if err := CreateDatastore(t.Context(), cfg, env, Create{Name: "trips", Shards: 2, Grant: true}); err != nil {
		t.Fatal(err)
	}
	for name, build := range map[string]func(*config.Config, Env) (Role, error){
		"worker":  func(c *config.Config, e Env) (Role, error) { return NewWorker(c, e) },
		"tailer":  func(c *config.Config, e Env) (Role, error) { return NewTailers(c, e) },
		"indexer": func(c *config.Config, e Env) (Role, error) { return NewIndexer(c, e) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			up, done := make(chan string, 1), make(chan error, 1)
			go func() { done <- Run(ctx, cfg, env, name, build, func(admin string) { up <- admin }) }()
			select {
			case err := <-done:
				t.Fatal(err)
			case admin := <-up:
				waitFor(t, 20*time.Second, func() error { return probe(admin+"/readyz?verbose", "[+] "+name) })
				if err := probe(admin+"/metrics", "go_goroutines"); err != nil {
					t.Error(err)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	away := *cfg
	away.Clusters = []config.Cluster{{Name: "c0", Nodes: []config.Node{{Name: "gone", Addr: "127.0.0.1:1"}}, Accounts: cfg.Clusters[0].Accounts}}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := Run(ctx, &away, env, "worker", func(c *config.Config, e Env) (Role, error) { return NewWorker(c, e) }, nil); err != nil && ctx.Err() == nil {
		t.Errorf("a worker whose servers are away gave up: %v", err)
	}
}

func probe(url, want string) error {
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != 200 || !strings.Contains(string(text), want) {
		return fmt.Errorf("%s: %d %s", url, resp.StatusCode, text)
	}
	return nil
}
