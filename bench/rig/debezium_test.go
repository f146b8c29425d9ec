package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/freeport"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/mysqltest"
)

// debeziumPrefix stands before the names of Debezium's topics.
const debeziumPrefix = "dbz"

// debezium is a way to set Debezium. Acks=all and lz4 are set for both, as ours
// has them.
type debezium struct {
	jvm               string // empty: as Kafka's own start scripts have it
	worker, connector map[string]string
}

// debeziumDefault leaves all as it comes, but for the JSON converter's schemas:
// with them each record repeats several KB of schema, which nobody would do.
var debeziumDefault = debezium{worker: map[string]string{
	"key.converter": "org.apache.kafka.connect.json.JsonConverter", "key.converter.schemas.enable": "false",
	"value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false",
}}

// debeziumTuned is the fastest that was found: each record is the row's key and
// the stored body as bytes, and nothing else of the row.
var debeziumTuned = debezium{
	jvm: "-Xms2G -Xmx2G -XX:+UseParallelGC",
	worker: map[string]string{
		"key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter", "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
		"producer.linger.ms": "0", "producer.batch.size": "262144", "producer.buffer.memory": "134217728",
	},
	connector: map[string]string{
		"poll.interval.ms": "1", "max.batch.size": "8192", "max.queue.size": "32768",
		"include.schema.changes": "false", "message.key.columns": "(.*).entity:row_key;(.*).prime:row_key",
		"transforms": "unwrap,key,value", "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
		"transforms.key.type": "org.apache.kafka.connect.transforms.ExtractField$Key", "transforms.key.field": "row_key",
		"transforms.value.type": "org.apache.kafka.connect.transforms.ExtractField$Value", "transforms.value.field": "body",
	},
}

// debeziumDir finds what tools/get-debezium.sh made.
func debeziumDir() (string, error) {
	if dir := os.Getenv("CELLOG_DEBEZIUM_DIR"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "connect")); err != nil {
			return "", fmt.Errorf("CELLOG_DEBEZIUM_DIR: %w: want the folder that tools/get-debezium.sh made", err)
		}
		return dir, nil
	}
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		p := filepath.Join(dir, ".cache", "debezium")
		if _, serr := os.Stat(filepath.Join(p, "connect")); serr == nil {
			return p, nil
		}
		dir = filepath.Dir(dir)
	}
	return "", errors.New("no Debezium: run tools/get-debezium.sh, or set CELLOG_DEBEZIUM_DIR to the folder it made")
}

// The files in which Debezium keeps how far it is.
const offsetsFile, historyFile, primedDir = "dbz.offsets", "dbz.history", "primed"

// startDebezium starts Debezium where the world was primed to, or else at the
// server's present position.
func (w *world) startDebezium(tb testing.TB, s *subject) *process {
	tb.Helper()
	dir, err := debeziumDir()
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{offsetsFile, historyFile} {
		text, err := os.ReadFile(filepath.Join(w.dir, primedDir, name))
		if errors.Is(err, os.ErrNotExist) {
			if err := os.RemoveAll(filepath.Join(w.dir, name)); err != nil {
				tb.Fatal(err)
			}
		} else if err != nil || os.WriteFile(filepath.Join(w.dir, name), text, 0o600) != nil {
			tb.Fatalf("%s: %v", name, err)
		}
	}
	port, err := freeport.Take(1)
	if err != nil {
		tb.Fatal(err)
	}
	w.rest = fmt.Sprintf("http://127.0.0.1:%d", port)
	worker := map[string]string{
		"bootstrap.servers": strings.Join(w.broker.Addrs(), ","), "listeners": w.rest, "plugin.path": filepath.Join(dir, "plugins"),
		"plugin.discovery": "service_load", "offset.storage.file.filename": filepath.Join(w.dir, offsetsFile),
		"producer.acks": "all", "producer.compression.type": "lz4",
	}
	a := mysqltest.Accounts.Admin
	connector := map[string]string{
		"name": "rig", "connector.class": "io.debezium.connector.mysql.MySqlConnector", "tasks.max": "1",
		"database.hostname": "127.0.0.1", "database.port": fmt.Sprint(w.node.Port()), "database.user": a.User, "database.password": a.Password,
		"database.server.id": "4711", "database.ssl.mode": "disabled", "driver.allowPublicKeyRetrieval": "true",
		"topic.prefix": debeziumPrefix, "table.include.list": `rig\.prime,` + datastore + `_[0-9]+\.entity`, "snapshot.mode": "no_data",
		"schema.history.internal":               "io.debezium.storage.file.history.FileSchemaHistory",
		"schema.history.internal.file.filename": filepath.Join(w.dir, historyFile),
		// The rig's broker makes no topics by itself.
		"topic.creation.default.replication.factor": "1", "topic.creation.default.partitions": "1",
	}
	maps.Copy(worker, s.debezium.worker)
	maps.Copy(connector, s.debezium.connector)
	args := []string{filepath.Join(dir, "connect")}
	for name, p := range map[string]map[string]string{"worker": worker, "connector": connector} {
		var text strings.Builder
		for _, k := range slices.Sorted(maps.Keys(p)) {
			fmt.Fprintf(&text, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
		}
		if err := os.WriteFile(filepath.Join(w.dir, name+".properties"), []byte(text.String()), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	for _, name := range []string{"worker", "connector"} {
		args = append(args, filepath.Join(w.dir, name+".properties"))
	}
	var env []string
	if s.debezium.jvm != "" {
		env = append(env, "CONNECT_JVM="+s.debezium.jvm)
	}
	return start(tb, s.name, w.dir, env, args...)
}

// primeTable is a table that Debezium follows and our tailer does not know.
const primeTable = "CREATE DATABASE rig; CREATE TABLE rig.prime (row_key BINARY(16) PRIMARY KEY, body MEDIUMBLOB)"

// flow returns when a Debezium that was just started has carried a row: with
// snapshot.mode=no_data it begins wherever the server then is, and stores no
// offset before its first event.
func (w *world) flow(tb testing.TB, p *process) {
	tb.Helper()
	adm, err := kafka.NewAdmin(kafka.Config{Addrs: w.broker.Addrs()})
	if err != nil {
		tb.Fatal(err)
	}
	defer adm.Close()
	at := place{debeziumPrefix + ".rig.prime", 0}
	if _, err := adm.EnsureTopic(tb.Context(), kafka.ColumnTopic(at.topic, 1, 8<<20)); err != nil {
		tb.Fatal(err)
	}
	c := count(tb, w.broker.Addrs(), []place{at}, true)
	defer c.stop()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(stallTimeout); ; {
		w.node.Exec(tb, "INSERT INTO rig.prime VALUES (UUID_TO_BIN(UUID()), 'x')")
		n, _, err := c.total()
		switch {
		case err != nil:
			tb.Fatal(err)
		case n > 0:
			return
		case time.Now().After(deadline):
			tb.Fatalf("%s carried no row within %v:\n%s", p.name, stallTimeout, p.logTail())
		}
		w.mustLive(tb, p)
		<-tick.C
	}
}

// prime lets Debezium store that it is at the server's present position, from
// where every later start goes on.
func (w *world) prime(tb testing.TB) {
	tb.Helper()
	p := w.startDebezium(tb, &subject{name: "debezium-prime", debezium: &debeziumDefault})
	w.flow(tb, p)
	p.stop() // it stores the offset when it stops
	if err := os.MkdirAll(filepath.Join(w.dir, primedDir), 0o700); err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{offsetsFile, historyFile} {
		if st, err := os.Stat(filepath.Join(w.dir, name)); err != nil || st.Size() == 0 {
			tb.Fatalf("Debezium stored no %s when it stopped: %v\n%s", name, err, p.logTail())
		}
		if err := os.Rename(filepath.Join(w.dir, name), filepath.Join(w.dir, primedDir, name)); err != nil {
			tb.Fatal(err)
		}
	}
}

// mustLive fails the test if a process is gone, or Debezium's task has failed,
// after which Connect lives on and does nothing.
func (w *world) mustLive(tb testing.TB, p *process) {
	tb.Helper()
	select {
	case <-p.done:
		tb.Fatalf("%s ended by itself:\n%s", p.name, p.logTail())
	default:
	}
	if !strings.HasPrefix(p.name, "debezium") || time.Since(w.asked) < 2*time.Second {
		return
	}
	w.asked = time.Now()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.rest+"/connectors/rig/status", nil)
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return // it still starts, or is busy
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && strings.Contains(string(text), `"FAILED"`) {
		tb.Fatalf("%s: its task failed: %.2000s\n%s", p.name, text, p.logTail())
	}
}
