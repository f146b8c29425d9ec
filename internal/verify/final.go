package verify

import (
	"context"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/position"
)

// pollInterval is how often the positions topics are read again.
const pollInterval = 50 * time.Millisecond

// waitUntilFinal waits until the positions topics say that every captured cell
// is final, or the wait is over. It decides nothing but how long to wait.
func (r *run) waitUntilFinal(ctx context.Context) error {
	open := map[cellog.ShardID]cellog.AddedID{}
	for s, last := range r.bounds {
		if last > 0 {
			open[cellog.ShardID(s)] = last
		}
	}
	stop := time.Now().Add(r.cfg.Wait)
	read := map[string]int64{} // by positions topic: the offset read up to
	for len(open) > 0 {
		topics, err := r.admin.Topics(ctx, cellog.PositionsTopicName(r.cfg.Prefix, ""))
		if err != nil {
			return err
		}
		for _, t := range topics {
			ends, err := r.admin.CommittedOffsets(ctx, t)
			if err != nil {
				return err
			}
			from := max(read[t], ends[0].Start)
			err = kafka.ReadRange(ctx, r.cfg.Kafka, t, 0, from, ends[0].End, func(f kafka.Fetched) error {
				ds, shard, ok := position.ParseShardKey(string(f.Key))
				if !ok || ds != r.cfg.Datastore || len(f.Value) == 0 {
					return nil
				}
				p, err := position.Unmarshal[position.Shard](f.Value)
				if err != nil {
					return err
				}
				if want, waiting := open[shard]; waiting && p.Last >= want {
					delete(open, shard)
				}
				return nil
			})
			if err != nil {
				return err
			}
			read[t] = max(from, ends[0].End)
		}
		if len(open) == 0 || time.Now().After(stop) {
			break
		}
		t := time.NewTimer(pollInterval)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
	if len(open) > 0 {
		r.detail("not final after %v: the logs of %d shards; what is not in Kafka counts as missing", r.cfg.Wait, len(open))
	}
	return nil
}
