package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, kafkatest.LeftBehind) }

var p0 = kafka.Partition{Topic: "trips.BASE", Partition: 0}

// fakeSource is a consumer group of one member, by hand.
type fakeSource struct {
	t     *testing.T
	group kafka.GroupConfig
	polls chan func(fn func(kafka.Partition, []kafka.Delivery, error)) error

	mu      sync.Mutex
	commits []kafka.Commit
	refuse  error
	paused  map[kafka.Partition]bool
	closed  chan struct{}
	owned   map[kafka.Partition]bool
}

func (s *fakeSource) Poll(ctx context.Context, _ int, fn func(kafka.Partition, []kafka.Delivery, error)) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case poll := <-s.polls:
		return poll(fn)
	}
}

func (s *fakeSource) Commit(_ context.Context, commits ...kafka.Commit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return s.refuse
	}
	for _, c := range commits {
		if !s.owned[c.Partition] {
			s.t.Errorf("commit of %s, which is not held", c.Partition)
		}
	}
	s.commits = append(s.commits, commits...)
	return nil
}

func (s *fakeSource) Pause(ps ...kafka.Partition)  { s.setPaused(true, ps) }
func (s *fakeSource) Resume(ps ...kafka.Partition) { s.setPaused(false, ps) }

func (s *fakeSource) setPaused(to bool, ps []kafka.Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ps {
		s.paused[p] = to
	}
}

func (s *fakeSource) isPaused(p kafka.Partition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused[p]
}

func (s *fakeSource) Close() {
	var ps []kafka.Partition
	s.mu.Lock()
	for p := range s.owned {
		ps = append(ps, p)
	}
	s.mu.Unlock()
	s.revoke(ps...)
}

// committed returns the newest commit of a partition.
func (s *fakeSource) committed(p kafka.Partition) kafka.Commit {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.commits) - 1; i >= 0; i-- {
		if s.commits[i].Partition == p {
			return s.commits[i]
		}
	}
	return kafka.Commit{Partition: p, Offset: -1}
}

func (s *fakeSource) assign(a kafka.Assignment) *kafka.Assignment {
	s.t.Helper()
	if err := s.group.OnAssigned(s.t.Context(), []*kafka.Assignment{&a}); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.owned[a.Partition] = true
	s.mu.Unlock()
	return &a
}

func (s *fakeSource) revoke(ps ...kafka.Partition) {
	s.group.OnRevoked(context.Background(), ps)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ps {
		delete(s.owned, p)
	}
}

func (s *fakeSource) lose(ps ...kafka.Partition) {
	s.mu.Lock()
	for _, p := range ps {
		delete(s.owned, p)
	}
	s.mu.Unlock()
	s.group.OnLost(ps)
}

// give has the next Poll return messages; it returns when they were taken in.
func (s *fakeSource) give(p kafka.Partition, ds ...kafka.Delivery) {
	done := make(chan struct{})
	s.polls <- func(fn func(kafka.Partition, []kafka.Delivery, error)) error {
		defer close(done)
		fn(p, ds, nil)
		return nil
	}
	<-done
}

// run starts a Feed on a fakeSource inside a synctest bubble; the function it
// returns ends the Feed.
func run(t *testing.T, cfg Config) (*Feed, *fakeSource, func()) {
	t.Helper()
	cfg.Kafka.Addrs = []string{"fake:1"}
	cfg.Group = "test"
	cfg.Topics = []string{"trips.BASE"}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeSource{
		t: t, polls: make(chan func(func(kafka.Partition, []kafka.Delivery, error)) error),
		paused: make(map[kafka.Partition]bool), owned: make(map[kafka.Partition]bool), closed: make(chan struct{}),
	}
	joined := make(chan struct{})
	f.join = func(_ context.Context, g kafka.GroupConfig) (source, error) {
		s.group = g
		close(joined)
		return s, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	<-joined
	synctest.Wait()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	return f, s, stop
}

func rowKey(n int) uuid.UUID {
	return uuid.MustParse(fmt.Sprintf("00000000-0000-4000-8000-%012d", n))
}

// cell is the message of a row's cell at an offset; its sequence is offset+1
// in shard 0.
func cell(row int, offset int64) kafka.Delivery {
	return cellSeq(row, offset, cellog.Sequence(offset+1))
}

func cellSeq(row int, offset int64, seq cellog.Sequence) kafka.Delivery {
	c := cellog.Cell{
		Key: cellog.Key{Row: rowKey(row), Column: "BASE", Ref: cellog.RefKey(offset)}, Datastore: "trips", Shard: 0,
		AddedID: cellog.AddedID(seq), Epoch: 1, Sequence: seq, Body: []byte(`{}`),
		CreatedAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(offset) * time.Millisecond),
	}
	return kafka.Delivery{Record: record.Encode(&c), Partition: p0, Offset: offset}
}

func cells(rows int, from, to int64) []kafka.Delivery {
	var ds []kafka.Delivery
	for o := from; o < to; o++ {
		ds = append(ds, cell(int(o)%rows, o))
	}
	return ds
}

var fresh = kafka.Assignment{Partition: p0, Fresh: true, LeaderEpoch: -1, Generation: 1}

var errPlanned = errors.New("planned")
