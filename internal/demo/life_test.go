package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/internal/verify"
)

const childEnv = "CELLOG_DEMO_BILLING"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		var cfg BillingConfig
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err := json.Unmarshal([]byte(text), &cfg)
		if err == nil {
			err = RunBilling(ctx, cfg)
		}
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, "billing:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	mysqltest.Main(m, kafkatest.LeftBehind)
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// The whole demo, shortened, on the roles of this process.
func TestDemo(t *testing.T) {
	cfg := config.Default()
	cfg.Kafka.Brokers = kafkatest.Start(t).Addrs()
	cfg.Worker.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Indexer.Schemas = "../../examples/trips/schemas"
	acc := func(a mysqlaccounts.Account) config.Account {
		return config.Account{User: a.User, Password: config.NewSecret(a.Password)}
	}
	a := mysqltest.Accounts
	for i := range 2 {
		s := mysqltest.Cluster(t, 1)
		c := config.Cluster{Name: fmt.Sprintf("c%d", i), Accounts: config.Accounts{Worker: acc(a.Worker), Tailer: acc(a.Tailer), Indexer: acc(a.Indexer), Admin: acc(a.Admin)}}
		for j, n := range append([]*mysqltest.Node{s.Master}, s.Minions...) {
			c.Nodes = append(c.Nodes, config.Node{Name: fmt.Sprintf("c%d-n%d", i, j), Addr: n.Addr()})
		}
		cfg.Clusters = append(cfg.Clusters, c)
	}
	env := app.Env{Log: obs.NewLogger(testLog{t}, obs.LogConfig{Level: "warn"})}
	ctx := t.Context()
	if err := app.CreateDatastore(ctx, &cfg, env, app.Create{Name: "trips", Shards: 8, Grant: true}); err != nil {
		t.Fatal(err)
	}
	w, err := app.NewWorker(&cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := app.NewTailers(&cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	x, err := app.NewIndexer(&cfg, env)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []app.Role{w, tl, x} {
		if err := r.Start(ctx); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := r.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	for _, r := range []app.Role{w, tl, x} {
		for stop := time.Now().Add(20 * time.Second); r.Ready(ctx) != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(stop) {
				t.Fatal(r.Ready(ctx))
			}
		}
	}
	url := "http://" + w.Addr()
	report, err := Run(ctx, Config{
		URL: url, Kafka: kafka.Config{Addrs: cfg.Kafka.Brokers}, For: 8 * time.Second, Rate: 60, Seed: 5, Out: testLog{t},
		Billing: func(gateway string) *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			b := BillingConfig{URL: url, Gateway: gateway, Kafka: kafka.Config{Addrs: cfg.Kafka.Brokers}, Datastore: "trips"}
			cmd.Env = append(os.Environ(), childEnv+"="+string(mustJSON(b)))
			cmd.Stdout, cmd.Stderr = testLog{t}, testLog{t}
			return cmd
		},
		Verify: func(ctx context.Context) (verify.Report, error) {
			return app.Verify(ctx, &cfg, env, "trips", verify.Config{Detail: func(s string) { t.Log(s) }})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	report.Print(testLog{t})
	if !report.OK || report.Trips < 300 || len(report.Kills) != 2 || report.Gateway.Replays == 0 {
		t.Errorf("report %s", mustJSON(report))
	}
}
