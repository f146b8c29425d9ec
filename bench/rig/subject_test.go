package rig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
)

// subject is something that is measured.
type subject struct {
	name     string
	value    string // of our tailer's records
	debezium *debezium
}

// limit says that it only reads, and writes to no broker.
func (s *subject) limit() bool { return s.value == "" && s.debezium == nil }

// choose returns the subjects that are named and can be measured.
func choose(o options) ([]*subject, error) {
	all := []*subject{{name: "read"}, {name: "inflate"}}
	for _, v := range o.values {
		if _, err := config.Parse("rig.yml", []byte(tailerConfig("127.0.0.1:1", []string{"127.0.0.1:2"}, v))); err != nil {
			fmt.Printf("left out: cellog-%s, which the configuration does not know\n", v)
			continue
		}
		all = append(all, &subject{name: "cellog-" + v, value: v})
	}
	all = append(all, &subject{name: "debezium-default", debezium: &debeziumDefault}, &subject{name: "debezium-tuned", debezium: &debeziumTuned})
	if o.subjects[0] == "all" {
		return all, nil
	}
	var out []*subject
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.name
		for _, want := range o.subjects {
			if s.name == want {
				out = append(out, s)
			}
		}
	}
	if len(out) != len(o.subjects) {
		return nil, fmt.Errorf("CELLOG_RIG=%s: want all, or some of %s", strings.Join(o.subjects, ","), strings.Join(names, ","))
	}
	return out, nil
}

// world is what a subject runs in: one server, one broker, one directory.
type world struct {
	node   *mysqltest.Node
	broker *kafkatest.Broker
	dir    string
	end    string    // of the binlog before the backlog, for our tailer; empty: there is none
	rest   string    // Debezium's status
	asked  time.Time // when it was asked last
}

// newBroker gives the world a broker without data.
func (w *world) newBroker(tb testing.TB) {
	kafkatest.Shutdown()
	w.broker = kafkatest.Start(tb)
}

// places are where a subject's cells go, by shard. It makes their topics, with
// the same settings for all.
func (w *world) places(tb testing.TB, s *subject) []place {
	tb.Helper()
	out := make([]place, shards)
	for i := range out {
		out[i] = place{cellog.TopicName("", datastore, "BASE"), int32(i)}
		if s.debezium != nil {
			out[i] = place{debeziumPrefix + "." + cellog.DatabaseName(datastore, cellog.ShardID(i)) + ".entity", 0}
		}
	}
	adm, err := kafka.NewAdmin(kafka.Config{Addrs: w.broker.Addrs()})
	if err != nil {
		tb.Fatal(err)
	}
	defer adm.Close()
	for _, p := range out {
		partitions := 1
		if s.debezium == nil {
			partitions = shards
		}
		if _, err := adm.EnsureTopic(tb.Context(), kafka.ColumnTopic(p.topic, partitions, 8<<20)); err != nil {
			tb.Fatal(err)
		}
	}
	return out
}

// start starts a subject; cells is how many a limit reads.
func (w *world) start(tb testing.TB, s *subject, cells int) *process {
	tb.Helper()
	switch {
	case s.debezium != nil:
		return w.startDebezium(tb, s)
	case s.limit():
		a := mysqltest.Accounts.Tailer
		return w.child(tb, s.name, s.name, w.node.Addr(), a.User, strconv.Itoa(cells))
	}
	text := tailerConfig(w.node.Addr(), w.broker.Addrs(), s.value)
	file := filepath.Join(w.dir, s.name+".yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	cfg, err := config.Load(file, func(name string) string { return passwords()[name] })
	if err != nil {
		tb.Fatal(err)
	}
	if err := app.WriteFirstOpen(tb.Context(), cfg, app.Env{}); err != nil {
		tb.Fatal(err)
	}
	if w.end != "" {
		w.setPosition(tb)
	}
	return w.child(tb, s.name, "tailer", file)
}

// noteEnd keeps where the binlog ends.
func (w *world) noteEnd(tb testing.TB) {
	tb.Helper()
	a := mysqltest.Accounts.Tailer
	src, err := binlog.New(binlog.Config{Addr: w.node.Addr(), User: a.User, Password: a.Password})
	if err != nil {
		tb.Fatal(err)
	}
	if w.end, err = src.Now(tb.Context()); err != nil || w.end == "" {
		tb.Fatalf("the binlog's end is %q: %v", w.end, err)
	}
}

// setPosition leaves the position that a tailer would have left which stopped
// there. Without one, it would read the tables.
func (w *world) setPosition(tb testing.TB) {
	tb.Helper()
	pub, err := publish.New(publish.Config{Kafka: kafka.Config{Addrs: w.broker.Addrs()}, Cluster: "c1"})
	if err != nil {
		tb.Fatal(err)
	}
	defer pub.Close()
	sess, pos, err := pub.Open(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	defer sess.Close(tb.Context())
	pos.Cluster.GTID = w.end
	if err := sess.Commit(tb.Context(), cdc.Commit{Cluster: *pos.Cluster}); err != nil {
		tb.Fatal(err)
	}
}

// rowsRead is how many rows the server has read of tables in their order.
func (w *world) rowsRead(tb testing.TB) int64 {
	tb.Helper()
	var name string
	var rows int64
	if err := w.node.DB(tb, "").QueryRow("SHOW GLOBAL STATUS LIKE 'Handler_read_next'").Scan(&name, &rows); err != nil {
		tb.Fatal(err)
	}
	return rows
}

func passwords() map[string]string {
	return map[string]string{"CELLOG_RIG_TAILER": mysqltest.Accounts.Tailer.Password, "CELLOG_RIG_ADMIN": mysqltest.Accounts.Admin.Password}
}

// tailerConfig is the configuration of our tailer, all defaults but the value.
func tailerConfig(node string, brokers []string, value string) string {
	values := ""
	if value != "json" {
		values = ", values: {BASE: " + value + "}"
	}
	a := mysqltest.Accounts
	return fmt.Sprintf(`kafka: {brokers: ["%s"]}
clusters:
  - name: c1
    nodes: [{name: n1, addr: "%s"}]
    accounts:
      tailer: {user: %s, password_env: CELLOG_RIG_TAILER}
      admin: {user: %s, password_env: CELLOG_RIG_ADMIN}
datastores: [{name: %s%s}]
admin: {listen: "127.0.0.1:0"}
log: {level: warn}
`, strings.Join(brokers, `", "`), node, a.Tailer.User, a.Admin.User, datastore, values)
}

// childEnv makes the test binary a subject.
const childEnv = "CELLOG_RIG_CHILD"

// child starts this binary as another process.
func (w *world) child(tb testing.TB, name string, args ...string) *process {
	env := []string{childEnv + "=" + strings.Join(args, "\n")}
	for k, v := range passwords() {
		env = append(env, k+"="+v)
	}
	return start(tb, name, w.dir, env, os.Args[0])
}

// runChild is what a child does until SIGTERM.
func runChild(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if args[0] == "tailer" {
		cfg, err := config.Load(args[1], os.Getenv)
		if err != nil {
			return err
		}
		env := app.Env{Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
		return app.Run(ctx, cfg, env, "tailer", func(cfg *config.Config, env app.Env) (app.Role, error) { return app.NewTailers(cfg, env) }, nil)
	}
	if len(args) != 4 {
		return errors.New("want LIMIT ADDR USER CELLS")
	}
	n, err := strconv.ParseInt(args[3], 10, 64)
	if err != nil {
		return err
	}
	src, err := binlog.New(binlog.Config{Addr: args[1], User: args[2], Password: os.Getenv("CELLOG_RIG_TAILER")})
	if err != nil {
		return err
	}
	if err := runLimit(ctx, src, n, args[0] == "inflate"); err != nil {
		return err
	}
	<-ctx.Done() // so that its costs can be read
	return nil
}
