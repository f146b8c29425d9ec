package publish

import (
	"context"
	"errors"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// LastCells is Session.Verify for those who only look.
func (p *Publisher) LastCells(ctx context.Context, shards map[cdc.ShardKey]cdc.VerifyShard) (map[cdc.ShardKey]cdc.Verified, error) {
	return (&session{p: p}).Verify(ctx, shards)
}

// Verify fetches the last record of every column of the given shards.
func (s *session) Verify(ctx context.Context, shards map[cdc.ShardKey]cdc.VerifyShard) (map[cdc.ShardKey]cdc.Verified, error) {
	var places []kafka.Place
	for k, v := range shards {
		for column, c := range v.Position.Columns {
			if column != position.Merged || v.Datastore.Merged {
				places = append(places, s.place(k, v.Datastore, column, c))
			}
		}
	}
	found, err := kafka.FetchAt(ctx, s.p.cfg.Kafka, places)
	if err != nil {
		return nil, convert(err)
	}
	starts := make(map[string]map[int32]kafka.Offsets)
	out := make(map[cdc.ShardKey]cdc.Verified, len(shards))
	for k, v := range shards {
		var res cdc.Verified
		for column, c := range v.Position.Columns {
			merged := column == position.Merged
			if merged && !v.Datastore.Merged {
				continue
			}
			pl := s.place(k, v.Datastore, column, c)
			f, ok := found[pl]
			if !ok {
				expired, err := s.expired(ctx, starts, pl)
				if err != nil {
					return nil, err
				}
				if !expired {
					res.Err = s.lost(k, pl, "there is no such record")
				}
				continue
			}
			cell, err := record.Decode(f.Record)
			switch {
			case err != nil:
				res.Err = s.lost(k, pl, "another record is there")
			case cell.Datastore != k.Datastore || cell.Shard != k.Shard || cell.AddedID != c.AddedID ||
				!merged && (cell.Column != column || cell.Sequence != c.Sequence):
				res.Err = s.lost(k, pl, "there is "+cell.ID())
			case c.AddedID == v.Position.Last:
				cell.Body = nil
				res.Last = cell
			}
		}
		out[k] = res
	}
	return out, nil
}

func (s *session) place(k cdc.ShardKey, ds *cdc.Datastore, column string, c position.Column) kafka.Place {
	return kafka.Place{
		Topic:     cellog.TopicName(s.p.cfg.Prefix, ds.Name, column),
		Partition: cellog.PartitionOf(k.Shard, ds.Partitions),
		Offset:    c.Offset,
	}
}

// expired says whether the partition now starts behind the place: then its
// head went, by somebody's retention or deletion, not its tail.
func (s *session) expired(ctx context.Context, starts map[string]map[int32]kafka.Offsets, pl kafka.Place) (bool, error) {
	o, ok := starts[pl.Topic]
	if !ok {
		var err error
		if o, err = s.p.adm.Offsets(ctx, pl.Topic); err != nil && !errors.Is(err, kafka.ErrUnknownTopic) {
			return false, convert(err)
		}
		starts[pl.Topic] = o
	}
	return pl.Offset < o[pl.Partition].Start, nil
}

// lost says what is not where it should be, and what mends it.
func (s *session) lost(k cdc.ShardKey, pl kafka.Place, found string) error {
	return fmt.Errorf("%w: %s, partition %d should hold its last record of shard %s at offset %d, but %s; the topic was truncated or recreated: stop the tailer, run `cellog tailer repair --cluster %s --datastore %s --shard %d`, which publishes from the entity table what the topic lacks, and start it again",
		cdc.ErrTailLost, pl.Topic, pl.Partition, k, pl.Offset, found, s.p.cfg.Cluster, k.Datastore, k.Shard)
}
