package triggers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/heartbeat"
	"github.com/cellog/cellog/schemas/record"
)

// A consumer that starts while a cluster has long stood still knows that it
// lags, however well the other clusters' heartbeats flow.
func TestLagOfAClusterThatStoodStillBefore(t *testing.T) {
	cfg := broker(t)
	adm, err := kafka.NewAdmin(cfg.kafka)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	topic := cellog.HeartbeatsTopicName(cfg.prefix)
	if _, err := adm.EnsureTopic(t.Context(), kafka.HeartbeatsTopic(topic)); err != nil {
		t.Fatal(err)
	}
	p, err := kafka.OpenProducer(t.Context(), kafka.ProducerConfig{Config: cfg.kafka})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for cluster, ago := range map[string]time.Duration{"dead": 20 * time.Minute, "well": 0} {
		at := time.Now().Add(-ago)
		v := heartbeat.Marshal(heartbeat.Beat{Cluster: cluster, Mark: "m", Beat: 1, WrittenAt: at})
		if err := errors.Join(p.Begin(t.Context()), p.Send(t.Context(), kafka.NewMessage(topic, 0, record.Record{Value: v, Time: at})), p.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	rt, stop := start(t, cfg, func(context.Context, cellog.Cell) error { return nil })
	waitFor(t, "the lag of the cluster that stands still", func() bool { return rt.Lag()["test"] >= 20*time.Minute })
	stop()
}
