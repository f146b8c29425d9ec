package triggers_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/cellog/cellog/internal/kafka"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func broker(t *testing.T) kafka.Config {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return kafka.Config{Addrs: c.ListenAddrs()}
}
