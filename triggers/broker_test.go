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
	broker *kafkatest.Broker
	kafka  kafka.Config
	prefix string
	base   string // the topic of column BASE
}

func broker(t testing.TB) place {
	t.Helper()
	prefix := kafkatest.Prefix(t)
	b := kafkatest.Start(t)
	return place{b, kafka.Config{Addrs: b.Addrs()}, prefix, cellog.TopicName(prefix, "trips", "BASE")}
}
