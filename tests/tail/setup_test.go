package tail

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/internal/mysqltest"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		runChild(spec)
		return
	}
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

var nth atomic.Int64

// newRig makes a datastore on a server, and a broker. node is the shared
// server unless a test needs its own.
func newRig(t testing.TB, node *mysqltest.Node, shards int) *rig {
	t.Helper()
	r := &rig{
		node: node, db: node.DB(t, ""),
		account: account{Addr: node.Addr(), User: mysqltest.Accounts.Tailer.User, Password: mysqltest.Accounts.Tailer.Password},
		broker:  kafkatest.Start(t), prefix: kafkatest.Prefix(t),
		cluster: "c1", store: fmt.Sprintf("t%d", nth.Add(1)), shards: shards,
	}
	r.kafka = kafka.Config{Addrs: r.broker.Addrs()}
	node.CreateShards(t, r.store, shards)
	r.firstOpen(t)
	return r
}

func (r *rig) exec(t testing.TB, q string, args ...any) {
	t.Helper()
	if _, err := r.db.Exec(q, args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

func (r *rig) database(shard cellog.ShardID) string { return cellog.DatabaseName(r.store, shard) }
