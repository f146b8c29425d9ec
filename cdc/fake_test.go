package cdc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/position"
	"github.com/cellog/cellog/schemas/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeServer is a binlog and entity tables.
type fakeServer struct {
	mu     sync.Mutex
	binlog []*Transaction // Position is the index after it
	purged int            // transactions that are gone
	rows   map[ShardKey][]cellog.Cell
	epoch  cellog.Epoch // of the shards and of what is put next
	more   chan struct{}
	fail   func() error                                 // asked before each transaction
	hide   func() bool                                  // asked by Heads: the rows cannot be read yet
	scan   func(k ShardKey, after cellog.AddedID) error // asked before each ScanEntity
}

func newFakeServer() *fakeServer {
	return &fakeServer{epoch: 1, rows: make(map[ShardKey][]cellog.Cell), more: make(chan struct{})}
}

var fakeBody = func() []byte {
	b, err := body.Encode(nil, []byte(`{"a":1}`), body.Limits{})
	if err != nil {
		panic(err)
	}
	return b
}()

// put commits n cells of a column.
func (s *fakeServer) put(k ShardKey, column string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var c Change
	c.Shard = k
	for range n {
		cell := cellog.Cell{Key: cellog.Key{Row: uuid.New(), Column: column, Ref: 1}, Datastore: k.Datastore, Shard: k.Shard,
			AddedID: cellog.AddedID(len(s.rows[k]) + 1), Epoch: s.epoch, Body: fakeBody, CreatedAt: time.Unix(1, 0)}
		s.rows[k] = append(s.rows[k], cell)
		c.Rows = append(c.Rows, Row{AddedID: cell.AddedID, Epoch: s.epoch, RowKey: cell.Row, Column: column, Ref: 1, Body: fakeBody, CreatedAt: cell.CreatedAt})
	}
	s.add(&Transaction{Changes: []Change{c}})
}

func (s *fakeServer) beat(_ context.Context, cluster string, beat int64, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(&Transaction{Beats: []Beat{{Cluster: cluster, Beat: beat, WrittenAt: at}}})
	return nil
}

func (s *fakeServer) add(t *Transaction) {
	s.binlog = append(s.binlog, t)
	t.Position = strconv.Itoa(len(s.binlog))
	close(s.more)
	s.more = make(chan struct{})
}

func (s *fakeServer) Now(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.Itoa(len(s.binlog)), nil
}

func (s *fakeServer) Run(ctx context.Context, from string, handle func(*Transaction) error) error {
	at := 0
	if from != "" {
		at, _ = strconv.Atoi(from)
	}
	for {
		s.mu.Lock()
		if at < s.purged {
			s.mu.Unlock()
			return ErrPositionLost
		}
		var t *Transaction
		if at < len(s.binlog) {
			c := *s.binlog[at]
			t = &c
		}
		more, fail := s.more, s.fail
		s.mu.Unlock()
		if t == nil {
			select {
			case <-more:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if fail != nil {
			if err := fail(); err != nil {
				return err
			}
		}
		if err := handle(t); err != nil {
			return err
		}
		at++
	}
}

func (s *fakeServer) Heads(_ context.Context, f func(Head) error) error {
	s.mu.Lock()
	heads := make(map[ShardKey]Head)
	hidden := s.hide != nil && s.hide()
	for k, rows := range s.rows {
		heads[k] = Head{Shard: k, Epoch: s.epoch, Term: 1}
		if !hidden {
			heads[k] = Head{Shard: k, Epoch: s.epoch, Term: 1, Last: cellog.AddedID(len(rows))}
		}
	}
	s.mu.Unlock()
	for _, h := range heads {
		if err := f(h); err != nil {
			return err
		}
	}
	return nil
}

func (s *fakeServer) ReadEntity(_ context.Context, ds string, shard cellog.ShardID, after cellog.AddedID, limit int) ([]cellog.Cell, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := s.rows[ShardKey{ds, shard}]
	if int(after) >= len(rows) {
		return nil, nil
	}
	rows = rows[after:]
	return append([]cellog.Cell(nil), rows[:min(limit, len(rows))]...), nil
}

func (s *fakeServer) Datastore(_ context.Context, name string) (int, int, bool, error) {
	return 4, 4, name != "nobody", nil
}

// replica returns a server that has the first n rows of each shard, in a binlog
// of its own, which does not show them.
func (s *fakeServer) replica(n int) *fakeServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := newFakeServer()
	for k, rows := range s.rows {
		r.rows[k] = append([]cellog.Cell(nil), rows[:min(n, len(rows))]...)
	}
	return r
}

// fakeKafka is a broker with one cluster's positions.
type fakeKafka struct {
	mu      sync.Mutex
	epoch   int
	cluster *position.Cluster
	shards  map[ShardKey]position.Shard
	cells   map[ShardKey][]cellog.Cell // committed, in order
	merged  map[ShardKey][]cellog.Cell // the same of the merged topic
	commits []int                      // cells in each
	beat    chan struct{}
	mark    string // of the last beat
	opened  int
	looks   int // at the positions

	fail   func(op string) error // asked before each call
	refuse func(*cellog.Cell) bool
	topic  func(column string) error
	slow   time.Duration // of a Verify
}

func newFakeKafka() *fakeKafka {
	return &fakeKafka{
		cluster: &position.Cluster{Term: 1, State: position.Open, Node: "n1"},
		shards:  make(map[ShardKey]position.Shard), cells: make(map[ShardKey][]cellog.Cell), merged: make(map[ShardKey][]cellog.Cell), beat: make(chan struct{}),
	}
}

func (k *fakeKafka) now() position.Cluster {
	k.mu.Lock()
	defer k.mu.Unlock()
	return *k.cluster
}

// claim does what a promotion does: it fences, and claims a term.
func (k *fakeKafka) claim(term cellog.Term) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch++
	k.cluster = &position.Cluster{Term: term, State: position.Claimed, Node: k.cluster.Node, ClaimMark: "m"}
}

// open ends a claim.
func (k *fakeKafka) open(node string, alone bool, first map[ShardKey]cellog.AddedID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cluster = &position.Cluster{Term: k.cluster.Term, State: position.Open, Node: node, Alone: alone}
	for key, id := range first {
		s := k.shards[key]
		s.Owner, s.Epoch, s.First = "c1", cellog.Epoch(k.cluster.Term), id
		k.shards[key] = s
	}
}

func (k *fakeKafka) at(key ShardKey) position.Shard {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shards[key]
}

func (k *fakeKafka) opens() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.opened
}

func (k *fakeKafka) sizes() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]int(nil), k.commits...)
}

func (k *fakeKafka) Positions(context.Context) (Positions, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looks++
	pos := Positions{Shards: make(map[ShardKey]position.Shard)}
	for key, s := range k.shards {
		s.Columns = maps.Clone(s.Columns)
		pos.Shards[key] = s
	}
	if k.cluster != nil {
		c := *k.cluster
		pos.Cluster = &c
	}
	return pos, nil
}

func (k *fakeKafka) Open(ctx context.Context) (Session, Positions, error) {
	k.mu.Lock()
	k.epoch++
	k.opened++
	s := &fakeSession{k: k, epoch: k.epoch}
	k.mu.Unlock()
	pos, err := k.Positions(ctx)
	return s, pos, err
}

func (k *fakeKafka) Watch(ctx context.Context, mark string) error {
	for {
		k.mu.Lock()
		beat := k.beat
		k.mu.Unlock()
		select {
		case <-beat:
			k.mu.Lock()
			seen := k.mark == mark
			k.mu.Unlock()
			if seen {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type fakeMessage struct {
	cell   cellog.Cell
	merged bool
}

func (m *fakeMessage) Offset() int64 { return int64(m.cell.Sequence) - 1 }
func (m *fakeMessage) Size() int     { return len(m.cell.Body) }

type fakeSession struct {
	k       *fakeKafka
	epoch   int
	broken  error
	pending []*fakeMessage
	refused error
	closed  bool
}

func (s *fakeSession) Verify(ctx context.Context, shards map[ShardKey]VerifyShard) (map[ShardKey]Verified, error) {
	if err := sleep(ctx, s.k.slow); err != nil {
		return nil, err
	}
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	out := make(map[ShardKey]Verified)
	for key, v := range shards {
		cells := s.k.cells[key]
		if int(v.Position.Last) > len(cells) {
			out[key] = Verified{Err: ErrTailLost}
			continue
		}
		out[key] = Verified{Last: cells[v.Position.Last-1]}
	}
	return out, nil
}

func (s *fakeSession) Topic(_ context.Context, _ *Datastore, column string) error {
	if s.k.topic != nil {
		return s.k.topic(column)
	}
	return nil
}

func (s *fakeSession) Encode(ds *Datastore, c *cellog.Cell, _ record.Form) (Message, Message) {
	m := &fakeMessage{cell: *c}
	if ds.Merged {
		return m, &fakeMessage{*c, true}
	}
	return m, nil
}

func (s *fakeSession) check(op string) error {
	if s.broken != nil {
		return s.broken
	}
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	if s.k.epoch != s.epoch {
		s.broken = ErrFenced
	} else if s.k.fail != nil {
		s.broken = s.k.fail(op)
	}
	return s.broken
}

func (s *fakeSession) Send(_ context.Context, m Message) error {
	if err := s.check("send"); err != nil {
		return err
	}
	f := m.(*fakeMessage)
	c := f.cell
	s.k.mu.Lock()
	refuse := s.k.refuse
	s.k.mu.Unlock()
	if refuse != nil && refuse(&c) {
		s.refused = fmt.Errorf("too large: %w", ErrRefused)
	}
	s.pending = append(s.pending, f)
	return nil
}

func (s *fakeSession) Flush(context.Context) error {
	if err := s.check("flush"); err != nil {
		return err
	}
	if s.refused != nil {
		s.broken = s.refused
	}
	return s.broken
}

var errUnclear = errors.New("no answer to the commit")

func (s *fakeSession) Commit(_ context.Context, c Commit) error {
	err := s.check("commit")
	if err != nil && !errors.Is(err, errUnclear) {
		return err
	}
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	if s.k.epoch != s.epoch {
		return ErrFenced
	}
	cells := 0
	for _, m := range s.pending {
		key := ShardKey{m.cell.Datastore, m.cell.Shard}
		if m.merged {
			s.k.merged[key] = append(s.k.merged[key], m.cell)
			continue
		}
		cells++
		s.k.cells[key] = append(s.k.cells[key], m.cell)
	}
	s.k.commits = append(s.k.commits, cells)
	s.pending = nil
	for key, p := range c.Shards {
		p.Columns = maps.Clone(p.Columns)
		s.k.shards[key] = p
	}
	cluster := c.Cluster
	s.k.cluster = &cluster
	if len(c.Beats) > 0 {
		s.k.mark = c.Cluster.TailerMark
		close(s.k.beat)
		s.k.beat = make(chan struct{})
	}
	return err
}

func (s *fakeSession) Close(context.Context) { s.closed = true }

// published returns how many cells of a shard are committed, after checking
// that they are 1, 2, 3, … with dense sequences.
func (k *fakeKafka) published(t *testing.T, key ShardKey) int {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	seqs := make(map[string]cellog.Sequence)
	for i, c := range k.cells[key] {
		if c.AddedID != cellog.AddedID(i+1) {
			t.Fatalf("%s: record %d has added_id %d", key, i, c.AddedID)
		}
		if seqs[c.Column]++; seqs[c.Column] != c.Sequence {
			t.Fatalf("%s: added_id %d of %s has sequence %d, want %d", key, c.AddedID, c.Column, c.Sequence, seqs[c.Column])
		}
		if string(c.Body) != `{"a":1}` {
			t.Fatalf("body %s", c.Body)
		}
	}
	return len(k.cells[key])
}

// publishedMerged returns how many cells of a shard are in the merged topic,
// after checking that they are the column topics' cells, in order.
func (k *fakeKafka) publishedMerged(t *testing.T, key ShardKey) int {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, c := range k.merged[key] {
		if want := k.cells[key][i]; c.AddedID != want.AddedID || c.Key != want.Key || c.Sequence != want.Sequence || string(c.Body) != string(want.Body) {
			t.Fatalf("%s: merged record %d is %+v, want %+v", key, i, c, want)
		}
	}
	return len(k.merged[key])
}

func newFakeTailer(t *testing.T, k *fakeKafka, s *fakeServer, change func(*Config)) *Tailer {
	t.Helper()
	cfg := Config{
		Cluster: "c1", Publisher: k, Beat: s.beat,
		Nodes: func(context.Context) ([]Node, error) {
			return []Node{{Name: "n1", Source: s, Entities: s}}, nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	tl, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

func mustStop(t *testing.T, tl *Tailer) {
	t.Helper()
	for range 2 {
		if err := tl.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}
