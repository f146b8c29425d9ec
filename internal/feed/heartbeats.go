package feed

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/heartbeat"
)

// Heartbeats follows the heartbeats of all clusters, so that whoever lives off
// the stream knows his lag also when there is nothing to do. The zero value is
// ready for use.
type Heartbeats struct {
	mu     sync.Mutex
	newest map[string]time.Time
}

// Follow reads the heartbeats topic until ctx ends; what fails is logged and
// tried again.
func (h *Heartbeats) Follow(ctx context.Context, cfg kafka.Config, prefix string, log *slog.Logger) {
	for ctx.Err() == nil {
		if err := h.read(ctx, cfg, prefix); err != nil && ctx.Err() == nil {
			log.Warn("cannot follow the heartbeats; the lag of who is idle grows meanwhile", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func (h *Heartbeats) read(ctx context.Context, cfg kafka.Config, prefix string) error {
	c, err := kafka.NewConsumer(kafka.ConsumerConfig{Config: cfg})
	if err != nil {
		return err
	}
	defer c.Close()
	// All that the topic keeps, which is an hour: so that a cluster is seen to
	// stand still that did so before this process began.
	from := kafka.FromZero()
	return c.Follow(ctx, from, []string{cellog.HeartbeatsTopicName(prefix)}, func(d kafka.Delivery) error {
		// Beat zero is a tailer's own sign of life: it did not come from the
		// master.
		if b, err := heartbeat.Unmarshal(d.Value); err == nil && b.Beat > 0 {
			h.saw(b.Cluster, b.WrittenAt)
		}
		return nil
	})
}

func (h *Heartbeats) saw(cluster string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.newest == nil {
		h.newest = make(map[string]time.Time)
	}
	if at.After(h.newest[cluster]) {
		h.newest[cluster] = at
	}
}

// Oldest returns when the newest heartbeat was written of the cluster that is
// furthest behind; ok is false while none came.
func (h *Heartbeats) Oldest() (oldest time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.newest {
		if !ok || at.Before(oldest) {
			oldest, ok = at, true
		}
	}
	return oldest, ok
}
