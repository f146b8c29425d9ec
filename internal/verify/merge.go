package verify

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/record"
)

// ahead is how many decoded records of a topic wait to be pulled.
const ahead = 64

// merge compares one partition. It belongs to one goroutine; the readers of
// the topics are its own.
type merge struct {
	r          *run
	partition  int32
	partitions int
	found      Report

	shards  []*shard
	columns map[string]*column
}

// shard is the state of one shard's entity table.
type shard struct {
	id       cellog.ShardID
	bound    cellog.AddedID
	page     []cellog.Cell // read and not compared yet
	after    cellog.AddedID
	read     bool // the table was read to the bound
	previous cellog.AddedID
}

// column is the state of one column's topic in this partition.
type column struct {
	name    string
	records <-chan cellog.Cell // nil where there is no topic
	shards  map[cellog.ShardID]*stream
}

// stream is the state of one shard's records in one column's topic.
type stream struct {
	queue    []cellog.Cell // pulled while looking for another shard's
	sequence cellog.Sequence
	// late are cells that were passed without a record, ascending.
	late []cellog.AddedID
}

func newMerge(r *run, partition int32, partitions int) *merge {
	m := &merge{r: r, partition: partition, partitions: partitions, columns: map[string]*column{}}
	for s := int(partition); s < len(r.bounds); s += partitions {
		m.shards = append(m.shards, &shard{id: cellog.ShardID(s), bound: r.bounds[s]})
	}
	return m
}

func (m *merge) run(ctx context.Context) error {
	// The readers end by themselves, for the comparison pulls all they have;
	// when it fails, the group's context ends them.
	g, ctx := errgroup.WithContext(ctx)
	for name, topic := range m.r.columnsOf() {
		ch := make(chan cellog.Cell, ahead)
		c := m.column(name)
		c.records = ch
		g.Go(func() error {
			defer close(ch)
			return m.readTopic(ctx, topic, ch)
		})
	}
	g.Go(func() error { return m.compare(ctx) })
	return g.Wait()
}

func (m *merge) column(name string) *column {
	c := m.columns[name]
	if c == nil {
		c = &column{name: name, shards: map[cellog.ShardID]*stream{}}
		m.columns[name] = c
	}
	return c
}

func (c *column) stream(s cellog.ShardID) *stream {
	st := c.shards[s]
	if st == nil {
		st = &stream{}
		c.shards[s] = st
	}
	return st
}

func (m *merge) readTopic(ctx context.Context, topic string, out chan<- cellog.Cell) error {
	o, ok := m.r.ends[topic][m.partition]
	if !ok {
		return fmt.Errorf("topic %s has no such partition", topic)
	}
	return kafka.ReadRange(ctx, m.r.cfg.Kafka, topic, m.partition, o.Start, o.End, func(f kafka.Fetched) error {
		cell, err := record.Decode(f.Record)
		if err != nil {
			return fmt.Errorf("topic %s, offset %d: %w", topic, f.Offset, err)
		}
		select {
		case out <- cell:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (m *merge) compare(ctx context.Context) error {
	for {
		s, err := m.oldest(ctx)
		if err != nil {
			return err
		}
		if s == nil {
			break
		}
		cell := &s.page[0]
		if err := m.cell(ctx, s, cell); err != nil {
			return err
		}
		s.page = s.page[1:]
	}
	for _, s := range m.shards {
		if n := int64(s.bound - s.previous); n > 0 {
			m.found.Holes += n
			m.r.detail("hole: %s ends at added_id %d, its shard_log at %d", cellog.DatabaseName(m.r.cfg.Datastore, s.id), s.previous, s.bound)
		}
	}
	return m.rest(ctx)
}

// oldest returns the shard whose next cell is the oldest, nil at the end of
// all.
func (m *merge) oldest(ctx context.Context) (*shard, error) {
	var first *shard
	for _, s := range m.shards {
		if len(s.page) == 0 && !s.read {
			page, err := m.r.cfg.Entities.Read(ctx, m.r.cfg.Datastore, s.id, s.after, s.bound, m.r.cfg.Page)
			if err != nil {
				return nil, fmt.Errorf("shard %s: %w", cellog.DatabaseName(m.r.cfg.Datastore, s.id), err)
			}
			s.page, s.read = page, len(page) == 0
			if n := len(page); n > 0 {
				s.after = page[n-1].AddedID
				s.read = s.after >= s.bound
			}
		}
		if len(s.page) > 0 && (first == nil || s.page[0].CreatedAt.Before(first.page[0].CreatedAt)) {
			first = s
		}
	}
	return first, nil
}

// cell looks for the record of one cell.
func (m *merge) cell(ctx context.Context, s *shard, cell *cellog.Cell) error {
	m.found.Cells++
	if gap := int64(cell.AddedID - s.previous - 1); gap != 0 {
		m.found.Holes += gap
		m.r.detail("hole: %s has no added_id %d … %d", cellog.DatabaseName(m.r.cfg.Datastore, s.id), s.previous+1, cell.AddedID-1)
	}
	s.previous = cell.AddedID
	c := m.column(cell.Column)
	st := c.stream(s.id)
	st.sequence++
	for {
		rec, err := m.peek(ctx, c, st)
		if err != nil {
			return err
		}
		if rec == nil || rec.AddedID > cell.AddedID {
			st.late = append(st.late, cell.AddedID)
			return nil
		}
		if rec.AddedID == cell.AddedID {
			m.found.Records++
			if err := m.match(cell, rec, st.sequence); err != nil {
				return err
			}
			st.pop()
			return nil
		}
		if err := m.earlier(ctx, c, st, rec); err != nil {
			return err
		}
		st.pop()
	}
}

// peek returns the shard's next record in the column's topic, nil if there is
// none.
func (m *merge) peek(ctx context.Context, c *column, st *stream) (*cellog.Cell, error) {
	for len(st.queue) == 0 {
		if more, err := m.pull(ctx, c); err != nil || !more {
			return nil, err
		}
	}
	return &st.queue[0], nil
}

// pull takes the topic's next record and puts it into its shard's queue; more
// is false when there is none.
func (m *merge) pull(ctx context.Context, c *column) (more bool, err error) {
	if c.records == nil {
		return false, nil
	}
	rec, ok := <-c.records
	if !ok {
		// It is closed after an error too: the group reports that one.
		c.records = nil
		return false, ctx.Err()
	}
	if !m.ours(rec.Shard) || rec.Datastore != m.r.cfg.Datastore || rec.Column != c.name {
		m.found.Records++
		m.found.BodyMismatch++
		m.r.detail("foreign: a record %s of column %s in the topic of %s, partition %d", rec.ID(), rec.Column, c.name, m.partition)
		return true, nil
	}
	to := c.stream(rec.Shard)
	to.queue = append(to.queue, rec)
	return true, nil
}

func (st *stream) pop() { st.queue = st.queue[1:] }

// ours says whether a shard's records belong into this partition.
func (m *merge) ours(s cellog.ShardID) bool {
	return s >= 0 && int(s) < len(m.r.bounds) && cellog.PartitionOf(s, m.partitions) == m.partition
}

// match compares a record with its cell.
func (m *merge) match(cell, rec *cellog.Cell, want cellog.Sequence) error {
	if rec.Sequence != want {
		m.found.Holes++
		m.r.detail("sequence: %s is number %d of %s in its shard, its record says %d", rec.ID(), want, rec.Column, rec.Sequence)
	}
	same, err := sameBody(cell.Body, rec.Body)
	if err != nil {
		return fmt.Errorf("cell %s: %w", cell.ID(), err)
	}
	if !same || cell.Key != rec.Key || cell.Epoch != rec.Epoch || !cell.CreatedAt.Equal(rec.CreatedAt) {
		m.found.BodyMismatch++
		what := "body"
		switch {
		case cell.Key != rec.Key:
			what = "key"
		case cell.Epoch != rec.Epoch:
			what = "epoch"
		case !cell.CreatedAt.Equal(rec.CreatedAt):
			what = "time"
		}
		m.r.detail("mismatch: the record of %s (%s) has another %s than the cell", rec.ID(), cell.Key, what)
	}
	return nil
}

// sameBody compares a stored body with a JSON text as JSON values. The error
// is that of the stored one.
func sameBody(stored, text []byte) (bool, error) {
	have, err := body.AppendJSON(nil, stored, 0)
	if err != nil {
		return false, err
	}
	if bytes.Equal(have, text) {
		return true, nil
	}
	other, err := body.Encode(nil, text, body.Limits{Bytes: body.MaxBytes})
	if err != nil {
		return false, nil // not a body that could have been stored
	}
	return body.Equal(stored, other)
}

// earlier judges a record whose cell was passed already, or never was.
func (m *merge) earlier(ctx context.Context, c *column, st *stream, rec *cellog.Cell) error {
	m.found.Records++
	if i, ok := slices.BinarySearch(st.late, rec.AddedID); ok {
		st.late = slices.Delete(st.late, i, i+1)
		m.found.OutOfOrder++
		m.r.detail("out of order: the record of %s came behind a later one of %s", rec.ID(), c.name)
		return nil
	}
	cells, err := m.r.cfg.Entities.Read(ctx, m.r.cfg.Datastore, rec.Shard, rec.AddedID-1, rec.AddedID, 1)
	if err != nil {
		return err
	}
	if len(cells) == 1 && cells[0].Column == c.name {
		m.found.Duplicates++
		m.r.detail("duplicate: %s has a further record in %s", rec.ID(), c.name)
		return nil
	}
	m.found.Missing++
	m.r.detail("missing: the record of %s in %s has no cell", rec.ID(), c.name)
	return nil
}

// rest judges the records behind the last cells; those above the captured
// positions are not of this comparison.
func (m *merge) rest(ctx context.Context) error {
	for _, name := range sortedKeys(m.columns) {
		c := m.columns[name]
		for {
			if err := m.drain(ctx, c); err != nil {
				return err
			}
			more, err := m.pull(ctx, c)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
		for id, st := range c.shards {
			m.found.Missing += int64(len(st.late))
			for _, l := range st.late {
				m.r.detail("missing: %s is not in %s", cellog.CellID(m.r.cfg.Datastore, id, l), name)
			}
		}
	}
	return nil
}

func (m *merge) drain(ctx context.Context, c *column) error {
	for id, st := range c.shards {
		for len(st.queue) > 0 {
			rec := &st.queue[0]
			if rec.AddedID <= m.r.bounds[id] {
				if err := m.earlier(ctx, c, st, rec); err != nil {
					return err
				}
			}
			st.pop()
		}
	}
	return nil
}
