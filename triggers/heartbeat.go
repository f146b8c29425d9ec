package triggers

import (
	"context"
	"sync"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/heartbeat"
)

// heartbeats holds the newest heartbeat of each cluster that came through.
type heartbeats struct {
	mu     sync.Mutex
	newest map[string]time.Time
}

// follow reads the heartbeats topic until ctx ends.
func (h *heartbeats) follow(ctx context.Context, cfg Config) {
	for ctx.Err() == nil {
		if err := h.read(ctx, cfg); err != nil && ctx.Err() == nil {
			cfg.Logger.Warn("cannot follow the heartbeats; the lag of idle triggers grows meanwhile", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func (h *heartbeats) read(ctx context.Context, cfg Config) error {
	c, err := kafka.NewConsumer(kafka.ConsumerConfig{Config: cfg.Kafka})
	if err != nil {
		return err
	}
	defer c.Close()
	// A minute back, so that a cluster which stands still is seen to.
	from := kafka.FromTime(time.Now().Add(-time.Minute))
	return c.Follow(ctx, from, []string{cellog.HeartbeatsTopicName(cfg.Prefix)}, func(d kafka.Delivery) error {
		// Beat zero is a tailer's own sign of life: it did not come from the
		// master.
		if b, err := heartbeat.Unmarshal(d.Value); err == nil && b.Beat > 0 {
			h.saw(b.Cluster, b.WrittenAt)
		}
		return nil
	})
}

func (h *heartbeats) saw(cluster string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.newest == nil {
		h.newest = make(map[string]time.Time)
	}
	if at.After(h.newest[cluster]) {
		h.newest[cluster] = at
	}
}

// oldest returns the newest heartbeat of the cluster that is furthest behind.
func (h *heartbeats) oldest() (oldest time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.newest {
		if !ok || at.Before(oldest) {
			oldest, ok = at, true
		}
	}
	return oldest, ok
}
