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
	"github.com/cellog/cellog/schemas/position"
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
	cells      int64
	found      counts // of the column topics
	merged     counts // of the merged topic

	shards  []*shard
	columns map[string]*column // the merged topic is one, under position.Merged
}

// counts are what was found in topics; Report tells what each one is.
type counts struct {
	records, missing, duplicates, outOfOrder, holes, mismatches int64
}

// shard is the state of one shard's entity table.
type shard struct {
	id       cellog.ShardID
	bound    cellog.AddedID
	page     []cellog.Cell // read and not compared yet
	after    cellog.AddedID
	read     bool // the table was read to the bound
	previous cellog.AddedID
	columns  map[string]cellog.Sequence // cells so far
}

// column is the state of one column's topic, or the merged one, in this
// partition.
type column struct {
	name    string
	found   *counts
	records <-chan pulled // nil where there is no topic
	shards  map[cellog.ShardID]*stream
}

// pulled is the next record of a topic.
type pulled struct {
	cellog.Cell
	bad string // why it is no cell's record
}

// stream is the state of one shard's records in one topic.
type stream struct {
	queue []cellog.Cell // pulled while looking for another shard's
	// late are cells that were passed without a record, ascending.
	late []cellog.AddedID
	// unreadable are cells that were passed whose column is not known, and
	// whose records did not come yet. A column's topic may have them or not.
	unreadable map[cellog.AddedID]bool
	numbering  map[string]*numbering // by column
}

// numbering follows how much higher the ce_sequence of a column's records is
// than the number of its cells, so that what shifts all records behind it, such
// as a cell that is lost, counts once.
type numbering struct {
	base    cellog.Sequence // in force
	pending cellog.Sequence // of the last record, when it is another: counted, or explained
}

// fault says whether a record is numbered otherwise than what came before it
// lets expect.
func (n *numbering) fault(record, cell cellog.Sequence) bool {
	switch d := record - cell; d {
	case n.base:
		n.pending = d
	case n.pending:
		n.base = d
	default:
		n.pending = d
		return true
	}
	return false
}

// lost takes note of a cell without a record: it may be numbered, or never have
// been of this column.
func (n *numbering) lost() { n.pending-- }

// extra takes note of a record without a cell, or with one whose column is not
// known, in front of the record of the given cell.
func (n *numbering) extra(record, next cellog.Sequence) {
	if record == next+n.pending {
		n.pending++
	}
}

func newMerge(r *run, partition int32, partitions int) *merge {
	m := &merge{r: r, partition: partition, partitions: partitions, columns: map[string]*column{}}
	for s := int(partition); s < len(r.bounds); s += partitions {
		m.shards = append(m.shards, &shard{id: cellog.ShardID(s), bound: r.bounds[s], columns: map[string]cellog.Sequence{}})
	}
	return m
}

func (m *merge) run(ctx context.Context) error {
	// The readers end by themselves, for the comparison pulls all they have;
	// when it fails, the group's context ends them.
	g, ctx := errgroup.WithContext(ctx)
	for name, topic := range m.r.columnsOf() {
		ch := make(chan pulled, ahead)
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
		c = &column{name: name, found: &m.found, shards: map[cellog.ShardID]*stream{}}
		if name == position.Merged {
			c.found = &m.merged
		}
		m.columns[name] = c
	}
	return c
}

func (c *column) stream(s cellog.ShardID) *stream {
	st := c.shards[s]
	if st == nil {
		st = &stream{unreadable: map[cellog.AddedID]bool{}, numbering: map[string]*numbering{}}
		c.shards[s] = st
	}
	return st
}

func (st *stream) numberingOf(column string) *numbering {
	n := st.numbering[column]
	if n == nil {
		n = &numbering{}
		st.numbering[column] = n
	}
	return n
}

func (m *merge) readTopic(ctx context.Context, topic string, out chan<- pulled) error {
	o, ok := m.r.ends[topic][m.partition]
	if !ok {
		return fmt.Errorf("topic %s has no such partition", topic)
	}
	return kafka.ReadRange(ctx, m.r.cfg.Kafka, topic, m.partition, o.Start, o.End, func(f kafka.Fetched) error {
		cell, err := record.Decode(f.Record)
		next := pulled{Cell: cell}
		if err != nil {
			next.bad = fmt.Sprintf("at offset %d: %v", f.Offset, err)
		}
		select {
		case out <- next:
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
			m.found.holes += n
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

// cell looks for the records of one cell.
func (m *merge) cell(ctx context.Context, s *shard, cell *cellog.Cell) error {
	m.cells++
	if gap := int64(cell.AddedID - s.previous - 1); gap != 0 {
		m.found.holes += gap
		m.r.detail("hole: %s has no added_id %d … %d", cellog.DatabaseName(m.r.cfg.Datastore, s.id), s.previous+1, cell.AddedID-1)
	}
	s.previous = cell.AddedID
	if cell.Body == nil {
		m.unreadable(s, cell.AddedID)
		return nil
	}
	s.columns[cell.Column]++
	if err := m.look(ctx, m.column(cell.Column), s, cell); err != nil || !m.r.merged {
		return err
	}
	return m.look(ctx, m.column(position.Merged), s, cell)
}

// unreadable passes a cell that is damaged: it is no cell that its records,
// wherever they are, could be equal to.
func (m *merge) unreadable(s *shard, id cellog.AddedID) {
	m.found.mismatches++
	m.r.detail("damaged: the stored cell %s cannot be read; its record in Kafka and the minions may have it", cellog.CellID(m.r.cfg.Datastore, s.id, id))
	for name := range m.r.columnsOf() {
		m.column(name).stream(s.id).unreadable[id] = true
	}
}

// look looks for the record of a cell in one topic.
func (m *merge) look(ctx context.Context, c *column, s *shard, cell *cellog.Cell) error {
	st, sequence := c.stream(s.id), s.columns[cell.Column]
	for {
		rec, err := m.peek(ctx, c, st)
		if err != nil {
			return err
		}
		if rec == nil || rec.AddedID > cell.AddedID {
			st.late = append(st.late, cell.AddedID)
			st.numberingOf(cell.Column).lost()
			return nil
		}
		if rec.AddedID == cell.AddedID {
			c.found.records++
			if err := m.match(c, st, cell, rec, sequence); err != nil {
				return err
			}
			st.pop()
			return nil
		}
		next := sequence
		if rec.Column != cell.Column {
			next = s.columns[rec.Column] + 1
		}
		if err := m.earlier(ctx, c, st, rec, next); err != nil {
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
	what := rec.bad
	if what == "" && (!m.ours(rec.Shard) || rec.Datastore != m.r.cfg.Datastore || c.name != position.Merged && rec.Column != c.name) {
		what = rec.ID() + " of column " + rec.Column
	}
	if what != "" {
		c.found.records++
		c.found.mismatches++
		m.r.detail("foreign: a record that does not belong into the topic of %s, partition %d: %s", c.name, m.partition, what)
		return true, nil
	}
	to := c.stream(rec.Shard)
	to.queue = append(to.queue, rec.Cell)
	return true, nil
}

func (st *stream) pop() { st.queue = st.queue[1:] }

// ours says whether a shard's records belong into this partition.
func (m *merge) ours(s cellog.ShardID) bool {
	return s >= 0 && int(s) < len(m.r.bounds) && cellog.PartitionOf(s, m.partitions) == m.partition
}

// match compares a record with its cell.
func (m *merge) match(c *column, st *stream, cell, rec *cellog.Cell, want cellog.Sequence) error {
	if n := st.numberingOf(cell.Column); n.fault(rec.Sequence, want) {
		c.found.holes++
		m.r.detail("sequence: %s is number %d of %s in its shard, its record in %s says %d", rec.ID(), want+n.base, cell.Column, c.name, rec.Sequence)
	}
	same, err := sameBody(cell.Body, rec.Body)
	if err != nil {
		return fmt.Errorf("cell %s: %w", cell.ID(), err)
	}
	if !same || cell.Key != rec.Key || cell.Epoch != rec.Epoch || !cell.CreatedAt.Equal(rec.CreatedAt) {
		c.found.mismatches++
		what := "body"
		switch {
		case cell.Key != rec.Key:
			what = "key"
		case cell.Epoch != rec.Epoch:
			what = "epoch"
		case !cell.CreatedAt.Equal(rec.CreatedAt):
			what = "time"
		}
		m.r.detail("mismatch: the record of %s (%s) in %s has another %s than the cell", rec.ID(), cell.Key, c.name, what)
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

// earlier judges a record whose cell was passed already, or never was. next is
// the number of the column's next cell.
func (m *merge) earlier(ctx context.Context, c *column, st *stream, rec *cellog.Cell, next cellog.Sequence) error {
	c.found.records++
	if i, ok := slices.BinarySearch(st.late, rec.AddedID); ok {
		st.late = slices.Delete(st.late, i, i+1)
		c.found.outOfOrder++
		m.r.detail("out of order: the record of %s came behind a later one of %s", rec.ID(), c.name)
		return nil
	}
	if st.unreadable[rec.AddedID] {
		delete(st.unreadable, rec.AddedID)
		st.numberingOf(rec.Column).extra(rec.Sequence, next)
		return nil
	}
	cells, err := m.r.cfg.Entities.Read(ctx, m.r.cfg.Datastore, rec.Shard, rec.AddedID-1, rec.AddedID, 1)
	if err != nil {
		return err
	}
	if len(cells) == 1 && (cells[0].Body == nil || c.name == position.Merged || cells[0].Column == c.name) {
		c.found.duplicates++
		m.r.detail("duplicate: %s has a further record in %s", rec.ID(), c.name)
		return nil
	}
	st.numberingOf(rec.Column).extra(rec.Sequence, next)
	c.found.missing++
	m.r.detail("missing: the record of %s in %s has no cell", rec.ID(), c.name)
	return nil
}

// rest judges the records behind the last cells. Those above the captured
// positions are not of this comparison, but for those of cells that no log had
// when the topics' ends were taken.
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
			c.found.missing += int64(len(st.late))
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
			switch {
			case rec.AddedID <= m.r.bounds[id]:
				if err := m.earlier(ctx, c, st, rec, 0); err != nil {
					return err
				}
			case rec.AddedID > m.r.heads[id]:
				c.found.records++
				c.found.missing++
				m.r.detail("missing: the record of %s in %s has no cell: the shard's log ends at %d", rec.ID(), c.name, m.r.heads[id])
			}
			st.pop()
		}
	}
	return nil
}
