package publish

import (
	"context"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

// repairCells is how many cells a repair commits at a time.
const repairCells = 1000

// Repaired says what Repair published again, by topic.
type Repaired map[string]int

// standing of a topic: the last record of the shard that it has.
type tail struct {
	sequence cellog.Sequence
	addedID  cellog.AddedID
	offset   int64
}

// Repair publishes from the entity table the cells of a shard that are final
// but that its topics lack, because they were truncated, deleted or recreated,
// and puts the shard's position right. Topics that are gone are made again. It
// fences the cluster's tailer, which must be stopped first and started after.
// A repair that was cut off is finished by another one.
//
// It returns an error, and changes nothing, if a topic has a hole in the
// middle, or cells that were never published: such a topic must be deleted.
func (p *Publisher) Repair(ctx context.Context, ds *cdc.Datastore, shard cellog.ShardID, entities cdc.EntityReader) (Repaired, error) {
	sess, pos, err := p.Open(ctx)
	if err != nil {
		return nil, err
	}
	s := sess.(*session)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		s.Close(ctx)
	}()
	k := cdc.ShardKey{Datastore: ds.Name, Shard: shard}
	at, ok := pos.Shards[k]
	if !ok || pos.Cluster == nil {
		return nil, fmt.Errorf("shard %s: nothing of it was published yet, so there is nothing to repair", k)
	}
	if at.Owner != p.cfg.Cluster {
		return nil, fmt.Errorf("shard %s: %w: repair it there (--cluster %s)", k, ErrNotOwner, at.Owner)
	}
	r := repair{s: s, ds: ds, key: k, pos: at, cluster: *pos.Cluster, tails: make(map[string]tail), done: make(Repaired)}
	r.cluster.TailerMark = ""
	for column := range at.Columns {
		if column == position.Merged {
			continue
		}
		if err := s.Topic(ctx, ds, column); err != nil {
			return nil, err
		}
		if r.tails[column], err = r.scan(ctx, cellog.TopicName(p.cfg.Prefix, ds.Name, column), false); err != nil {
			return nil, err
		}
		if have, want := r.tails[column].sequence, at.Columns[column].Sequence; have > want {
			return nil, fmt.Errorf("shard %s: the topic of column %s has %d cells, but only %d were published: delete the topic and repair again", k, column, have, want)
		}
	}
	if ds.Merged {
		if r.merged, err = r.scan(ctx, cellog.MergedTopicName(p.cfg.Prefix, ds.Name), true); err != nil {
			return nil, err
		}
	}
	return r.done, r.publish(ctx, entities)
}

type repair struct {
	s       *session
	ds      *cdc.Datastore
	key     cdc.ShardKey
	pos     position.Shard
	cluster position.Cluster
	tails   map[string]tail // by column
	merged  tail
	done    Repaired
}

// scan finds the shard's last record in a topic, and refuses holes.
func (r *repair) scan(ctx context.Context, topic string, merged bool) (tail, error) {
	var t tail
	offsets, err := r.s.p.adm.Offsets(ctx, topic)
	if err != nil {
		return t, convert(err)
	}
	partition := cellog.PartitionOf(r.key.Shard, r.ds.Partitions)
	o := offsets[partition]
	err = kafka.ReadRange(ctx, r.s.p.cfg.Kafka, topic, partition, o.Start, o.End, func(f kafka.Fetched) error {
		c, err := record.Decode(f.Record)
		if err != nil {
			return fmt.Errorf("%s, partition %d, offset %d: %w", topic, partition, f.Offset, err)
		}
		if c.Datastore != r.key.Datastore || c.Shard != r.key.Shard {
			return nil
		}
		next := c.Sequence == t.sequence+1
		if merged {
			next = c.AddedID == t.addedID+1
		}
		// What lies before Start has expired.
		if !next && (t.addedID > 0 || o.Start == 0) {
			return fmt.Errorf("%s, partition %d, offset %d: cell %s does not follow added_id %d: delete the topic and repair again",
				topic, partition, f.Offset, c.ID(), t.addedID)
		}
		t = tail{c.Sequence, c.AddedID, f.Offset}
		return nil
	})
	return t, convert(err)
}

// publish reads the shard from its first cell on, since only so the cells of a
// column can be counted, and sends what the topics lack.
func (r *repair) publish(ctx context.Context, entities cdc.EntityReader) error {
	counts := make(map[string]cellog.Sequence)
	newest := make(map[string]cdc.Message)
	sent := 0
	for last := cellog.AddedID(0); last < r.pos.Last; {
		cells, err := entities.ReadEntity(ctx, r.key.Datastore, r.key.Shard, last, repairCells)
		if err != nil {
			return fmt.Errorf("read %s.entity after %d: %w", r.key, last, err)
		}
		if len(cells) == 0 || cells[0].AddedID != last+1 {
			return fmt.Errorf("%s.entity has no added_id %d, which was published: repair from another node", r.key, last+1)
		}
		for i := range cells {
			c := &cells[i]
			if c.AddedID != last+1 || c.AddedID > r.pos.Last {
				break
			}
			last = c.AddedID
			counts[c.Column]++
			c.Sequence = counts[c.Column]
			toColumn := c.Sequence > r.tails[c.Column].sequence
			toMerged := r.ds.Merged && c.AddedID > r.merged.addedID
			if !toColumn && !toMerged {
				continue
			}
			if c.Body, err = body.AppendJSON(nil, c.Body, 0); err != nil {
				return fmt.Errorf("%s, added_id %d: %w", r.key, c.AddedID, err)
			}
			column, merged := r.s.Encode(r.ds, c)
			if toColumn {
				if err := r.send(ctx, column); err != nil {
					return err
				}
				newest[c.Column] = column
			}
			if toMerged {
				if err := r.send(ctx, merged); err != nil {
					return err
				}
				newest[position.Merged] = merged
			}
			if sent++; sent%repairCells == 0 {
				if err := r.commit(ctx, newest, false); err != nil {
					return err
				}
			}
		}
	}
	return r.commit(ctx, newest, true)
}

func (r *repair) send(ctx context.Context, m cdc.Message) error {
	r.done[m.(*kafka.Message).Topic()]++
	return r.s.Send(ctx, m)
}

// commit writes the position with the last transaction: until then the topics
// still lack something.
func (r *repair) commit(ctx context.Context, newest map[string]cdc.Message, last bool) error {
	if err := r.s.Flush(ctx); err != nil {
		return err
	}
	c := cdc.Commit{Cluster: r.cluster}
	if last {
		if r.ds.Merged {
			r.tails[position.Merged] = r.merged
			r.pos.Columns[position.Merged] = position.Column{Sequence: cellog.Sequence(r.pos.Last), AddedID: r.pos.Last}
		}
		for column, at := range r.pos.Columns {
			at.Offset = r.tails[column].offset
			if m := newest[column]; m != nil {
				at.Offset = m.Offset()
			}
			r.pos.Columns[column] = at
		}
		c.Shards = map[cdc.ShardKey]position.Shard{r.key: r.pos}
	}
	return r.s.Commit(ctx, c)
}
