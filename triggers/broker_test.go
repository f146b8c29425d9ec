package triggers_test

import (
	"os"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
)

// session is how long the broker waits for a killed member.
const session = time.Second

func TestMain(m *testing.M) {
	if brokers := os.Getenv(childEnv); brokers != "" {
		child(brokers)
	}
	kafkatest.Main(m)
}

// place is a broker and the names of a test's own.
type place struct {
	kafka  kafka.Config
	prefix string
	base   string // the topic of column BASE
}

func broker(t testing.TB) place {
	t.Helper()
	prefix := kafkatest.Prefix(t)
	return place{kafka.Config{Addrs: kafkatest.Start(t).Addrs()}, prefix, cellog.TopicName(prefix, "trips", "BASE")}
}
