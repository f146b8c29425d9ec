package kafka_test

import (
	"testing"

	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

func broker(t *testing.T) kafka.Config {
	t.Helper()
	return kafka.Config{Addrs: kafkatest.Start(t).Addrs()}
}
