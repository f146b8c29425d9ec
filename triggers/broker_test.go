package triggers_test

import (
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/cellog/cellog/internal/kafka"
)

// session is how long the broker waits for a killed member.
const session = 600 * time.Millisecond

func TestMain(m *testing.M) {
	if brokers := os.Getenv(childEnv); brokers != "" {
		child(brokers)
	}
	goleak.VerifyTestMain(m)
}

func broker(t *testing.T) kafka.Config {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(session))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return kafka.Config{Addrs: c.ListenAddrs()}
}
