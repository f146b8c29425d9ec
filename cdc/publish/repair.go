package publish

import (
	"context"
	"fmt"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/kafka"
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
	epoch    cellog.Epoch
	key      cellog.Key
	offset   int64
}

// Repair publishes from the entity table the cells of a shard that are final
// but that its topics lack, because they were truncated, deleted or recreated,
// and puts the shard's position right. Topics that are gone are made again. It
// fences the cluster's tailer, which must be stopped first and started after.
// A repair that was cut off is finished by another one.
//
// It returns an error, and changes nothing, if a topic has a hole in the
// middle, or cells that were never published: such a topic must be deleted. So it
// does if the server's shard is of an older epoch than the position, or has other
// cells than those that were published: then another node must be read.
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
	if err := r.epoch(ctx, entities); err != nil {
		return nil, err
	}
	// All is looked at before anything is sent: what is sent is final.
	if err := r.walk(ctx, entities, func(*cellog.Cell) error { return nil }); err != nil {
		return nil, err
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
		t = tail{c.Sequence, c.AddedID, c.Epoch, c.Key, f.Offset}
		return nil
	})
	return t, convert(err)
}

// otherNode ends the errors about a node that is not to be read.
const otherNode = "`cellog cluster rejoin` it and repair again, or repair from another node"

// epoch refuses a node that may be of a dead branch, whatever cells it has.
func (r *repair) epoch(ctx context.Context, entities cdc.EntityReader) error {
	var head *cdc.Head
	err := entities.Heads(ctx, func(h cdc.Head) error {
		if h.Shard == r.key {
			head = &h
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case head == nil:
		return fmt.Errorf("shard %s: %w: it has no such shard", r.key, cdc.ErrNodeBehind)
	case head.Epoch < r.pos.Epoch:
		return fmt.Errorf("shard %s: %w: the shard is of epoch %d there, published is epoch %d: %s", r.key, cdc.ErrNodeBehind, head.Epoch, r.pos.Epoch, otherNode)
	}
	return nil
}

// check refuses a cell that cannot be the one that was published.
func (r *repair) check(c *cellog.Cell) error {
	if old := c.AddedID < r.pos.First; old != (c.Epoch < r.pos.Epoch) || c.Epoch > r.pos.Epoch {
		return fmt.Errorf("shard %s: %w: added_id %d has epoch %d, but epoch %d begins at added_id %d: %s",
			r.key, cdc.ErrNodeDiffers, c.AddedID, c.Epoch, r.pos.Epoch, r.pos.First, otherNode)
	}
	at := r.pos.Columns[c.Column]
	if c.Sequence > at.Sequence || (c.Sequence == at.Sequence) != (c.AddedID == at.AddedID) {
		return fmt.Errorf("shard %s: %w: added_id %d is cell %d of column %s, published were %d, the last one at added_id %d: %s",
			r.key, cdc.ErrNodeDiffers, c.AddedID, c.Sequence, c.Column, at.Sequence, at.AddedID, otherNode)
	}
	t := r.tails[c.Column]
	if (c.Sequence == t.sequence || c.AddedID == t.addedID) && !t.is(c) {
		return r.differs(c, t)
	}
	if c.AddedID == r.merged.addedID && !r.merged.is(c) {
		return r.differs(c, r.merged)
	}
	return nil
}

func (t tail) is(c *cellog.Cell) bool {
	return t.addedID == c.AddedID && t.epoch == c.Epoch && t.key == c.Key
}

func (r *repair) differs(c *cellog.Cell, t tail) error {
	return fmt.Errorf("shard %s: %w: added_id %d is (epoch %d, %s), Kafka has (epoch %d, %s) at added_id %d: %s",
		r.key, cdc.ErrNodeDiffers, c.AddedID, c.Epoch, c.Key, t.epoch, t.key, t.addedID, otherNode)
}

// walk calls f for the shard's published cells from the first one on, since only
// so the cells of a column can be counted.
func (r *repair) walk(ctx context.Context, entities cdc.EntityReader, f func(*cellog.Cell) error) error {
	counts := make(map[string]cellog.Sequence)
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
			if err := r.check(c); err != nil {
				return err
			}
			if err := f(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// publish sends what the topics lack.
func (r *repair) publish(ctx context.Context, entities cdc.EntityReader) error {
	newest := make(map[string]cdc.Message)
	sent := 0
	err := r.walk(ctx, entities, func(c *cellog.Cell) (err error) {
		toColumn := c.Sequence > r.tails[c.Column].sequence
		toMerged := r.ds.Merged && c.AddedID > r.merged.addedID
		if !toColumn && !toMerged {
			return nil
		}
		var form record.Form
		if c.Body, form, err = record.AppendValue(nil, c.Body, r.ds.Values.Of(c.Column)); err != nil {
			return fmt.Errorf("%s, added_id %d: %w", r.key, c.AddedID, err)
		}
		column, merged := r.s.Encode(r.ds, c, form)
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
			return r.commit(ctx, newest, false)
		}
		return nil
	})
	if err != nil {
		return err
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
