package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// MaxMetadata is the number of bytes of metadata that a broker keeps with a
// committed offset unless it is set otherwise (offset.metadata.max.bytes).
const MaxMetadata = 4096

// GroupConfig says which topics a Group shares out.
type GroupConfig struct {
	ConsumerConfig
	// Group is the consumer group's name. Required.
	Group string
	// Topics to read; those that do not exist yet are waited for. Required.
	Topics []string
	// From is where partitions without a committed offset start. The start is
	// committed when the partition is assigned, so it is chosen once.
	From From
	// SessionTimeout is how long a dead member keeps its partitions. Default
	// 10 s; brokers refuse less than 6 s unless set otherwise.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long OnRevoked may take. Default 60 s.
	RebalanceTimeout time.Duration

	// OnAssigned hears of partitions before their first message. It must be
	// quick. Metadata of an Assignment may be changed: it is committed
	// together with the start before the first message is delivered. An error
	// gives the partitions back and tries again.
	OnAssigned func(ctx context.Context, assigned []*Assignment) error
	// OnRevoked hears of partitions that go to another member once it
	// returns: finish and Commit before that. No message of theirs is
	// delivered after it was called.
	OnRevoked func(ctx context.Context, revoked []Partition)
	// OnLost hears of partitions that another member may have already: there
	// is nothing to finish, and nothing may be committed.
	OnLost func(lost []Partition)
}

// Assignment is a partition that was given to this member.
type Assignment struct {
	Partition
	// Offset and LeaderEpoch are where the member goes on.
	Offset      int64
	LeaderEpoch int32
	// Fresh says that the group had no committed offset for the partition.
	Fresh bool
	// LogStart is the partition's first offset that is still there.
	LogStart int64
	// Generation is the group's generation: higher than in every earlier
	// assignment of the partition, unless the broker forgot the group.
	Generation int64
	// Metadata is what was committed with the offset.
	Metadata string
}

// Commit is an offset to commit: that of the next message to be read.
type Commit struct {
	Partition
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// Group is one member of a consumer group. The members share partitions with
// cooperative balancing: who keeps a partition is not interrupted.
//
// Poll's function and the three callbacks never run at the same time. Commit,
// Pause and Resume may be called at any time, also from them.
type Group struct {
	cfg GroupConfig
	cl  *kgo.Client
	adm *kadm.Client
	// built is closed when cl and adm are set: the client calls back from its
	// own goroutines before NewClient has returned.
	built chan struct{}

	// latest is what From latest means, read when the Group was made.
	latest map[Partition]place

	mu       sync.Mutex
	assigned map[Partition]int64 // the offset that was given to us
	fetched  *kmsg.OffsetFetchResponse
	failed   map[Partition]bool
}

// JoinGroup returns a member of the group; it joins in the background. With
// FromLatest it asks the brokers first what the latest is.
func JoinGroup(ctx context.Context, cfg GroupConfig) (*Group, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Group == "":
		return nil, errors.New("kafka group: Group is empty")
	case len(cfg.Topics) == 0:
		return nil, fmt.Errorf("kafka group %s: Topics is empty", cfg.Group)
	}
	cfg.SessionTimeout = cmp.Or(cfg.SessionTimeout, 10*time.Second)
	cfg.RebalanceTimeout = cmp.Or(cfg.RebalanceTimeout, 60*time.Second)
	g := &Group{cfg: cfg, assigned: make(map[Partition]int64), failed: make(map[Partition]bool), built: make(chan struct{})}
	if cfg.From.latest {
		if err := g.findLatest(ctx); err != nil {
			return nil, fmt.Errorf("kafka group %s: %w", cfg.Group, err)
		}
	}
	opts := append(cfg.options(),
		kgo.ConsumerGroup(cfg.Group),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(cfg.SessionTimeout),
		kgo.HeartbeatInterval(min(3*time.Second, cfg.SessionTimeout/4)),
		kgo.RebalanceTimeout(cfg.RebalanceTimeout),
		kgo.OnOffsetsFetched(g.onFetched),
		kgo.AdjustFetchOffsetsFn(g.onAdjust),
		kgo.OnPartitionsRevoked(g.onRevoked),
		kgo.OnPartitionsLost(g.onLost),
	)
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka group %s: %w", cfg.Group, err)
	}
	g.cl, g.adm = cl, kadm.NewClient(cl)
	close(g.built)
	return g, nil
}

func (g *Group) findLatest(ctx context.Context) error {
	cl, err := kgo.NewClient(g.cfg.options()...)
	if err != nil {
		return err
	}
	defer cl.Close()
	g.latest, err = listOffsets(ctx, kadm.NewClient(cl).ListCommittedOffsets, g.cfg.Topics)
	return err
}

// Close finishes through OnRevoked and leaves the group.
func (g *Group) Close() { g.cl.CloseAllowingRebalance() }

// Poll waits for messages and calls fn for each partition that has some, in
// offset order. fn must not block: rebalances wait for it. A partition that
// cannot be read comes with an error, an *OutOfRangeError for one; it gives no
// more messages until it is assigned anew. max bounds the messages of a poll.
// Poll returns an error when ctx ends, when the Group is closed, and, wrapped
// in a *SessionError, when the group could not be joined; it goes on trying,
// so Poll may be called again.
func (g *Group) Poll(ctx context.Context, max int, fn func(p Partition, got []Delivery, err error)) error {
	fetches := g.cl.PollRecords(ctx, max)
	defer g.cl.AllowRebalance()
	if fetches.IsClientClosed() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var session error
	fetches.EachPartition(func(part kgo.FetchTopicPartition) {
		p := Partition{part.Topic, part.Partition}
		if part.Err != nil {
			var s *kgo.ErrGroupSession
			if errors.As(part.Err, &s) || part.Partition < 0 {
				session = &SessionError{Group: g.cfg.Group, Err: convert(part.Err)}
				return
			}
			g.fail(p)
			fn(p, nil, fetchError(ctx, g.adm, p, g.given(p), part.Err))
			return
		}
		if len(part.Records) == 0 || g.hasFailed(p) {
			return
		}
		got := make([]Delivery, len(part.Records))
		for i, r := range part.Records {
			got[i] = delivery(r)
		}
		fn(p, got, nil)
	})
	return session
}

// SessionError is returned when a member could not join its group, or was put
// out of it.
type SessionError struct {
	Group string
	Err   error
}

// Error names the group and the broker's reason.
func (e *SessionError) Error() string { return fmt.Sprintf("consumer group %s: %v", e.Group, e.Err) }

// Unwrap returns the broker's reason.
func (e *SessionError) Unwrap() error { return e.Err }

// fail stops a partition for good: after data loss the client would go on by
// itself.
func (g *Group) fail(p Partition) {
	g.mu.Lock()
	g.failed[p] = true
	g.mu.Unlock()
	g.Pause(p)
}

func (g *Group) hasFailed(p Partition) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed[p]
}

func (g *Group) given(p Partition) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, ok := g.assigned[p]; ok {
		return at
	}
	return -1
}

// Pause stops messages of the partitions until Resume, for one that holds too
// much unfinished work.
func (g *Group) Pause(ps ...Partition) { g.cl.PauseFetchPartitions(byTopic(ps)) }

// Resume takes Pause back, except for partitions that failed.
func (g *Group) Resume(ps ...Partition) {
	ps = slices.DeleteFunc(slices.Clone(ps), g.hasFailed)
	if len(ps) > 0 {
		g.cl.ResumeFetchPartitions(byTopic(ps))
	}
}

// Commit commits offsets under the member's generation and waits for the
// answer. Who holds a partition no longer must not commit it: the broker
// compares generations only.
func (g *Group) Commit(ctx context.Context, commits ...Commit) error {
	if len(commits) == 0 {
		return nil
	}
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	metadata := make(map[Partition]string, len(commits))
	for _, c := range commits {
		if len(c.Metadata) > MaxMetadata {
			return fmt.Errorf("commit of %s: metadata of %d bytes, the limit is %d", c.Partition, len(c.Metadata), MaxMetadata)
		}
		if offsets[c.Topic] == nil {
			offsets[c.Topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[c.Topic][c.Partition.Partition] = kgo.EpochOffset{Epoch: c.LeaderEpoch, Offset: c.Offset}
		metadata[c.Partition] = c.Metadata
	}
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			t := &req.Topics[i]
			for j := range t.Partitions {
				m := metadata[Partition{t.Topic, t.Partitions[j].Partition}]
				t.Partitions[j].Metadata = &m
			}
		}
		return nil
	})
	var failed error
	g.cl.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			failed = convert(err)
			return
		}
		failed = commitErrors(resp)
	})
	if failed != nil {
		return fmt.Errorf("commit of group %s: %w", g.cfg.Group, failed)
	}
	return nil
}

// onFetched keeps the group's commits for onAdjust, which the client calls
// next, from the same goroutine.
func (g *Group) onFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fetched = resp
	return nil
}

// onAdjust settles where each new partition starts, commits that, and tells
// the owner. Nothing is fetched of them before it returns.
func (g *Group) onAdjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	<-g.built
	var topics []string
	for topic := range offsets {
		topics = append(topics, topic)
	}
	if len(topics) == 0 {
		return offsets, nil
	}
	logStarts, err := listOffsets(ctx, g.adm.ListStartOffsets, topics)
	if err != nil {
		return nil, err
	}
	starts, err := startOffsets(ctx, g.adm, g.cfg.From, g.latest, topics)
	if err != nil {
		return nil, err
	}
	metadata, ids := g.committedMetadata()
	_, generation := g.cl.GroupMetadata()
	var given []*Assignment
	for topic, parts := range offsets {
		for n, offset := range parts {
			p := Partition{topic, n}
			a := &Assignment{Partition: p, LogStart: logStarts[p].Offset, Generation: int64(generation)}
			if m, ok := metadata[p]; ok {
				at := offset.EpochOffset()
				a.Offset, a.LeaderEpoch, a.Metadata = at.Offset, at.Epoch, m
			} else {
				// A partition that is not in starts was made after the Group.
				start, ok := starts[p]
				if !ok {
					start = place{logStarts[p].Offset, -1}
				}
				a.Offset, a.LeaderEpoch, a.Fresh = start.Offset, -1, true
			}
			given = append(given, a)
		}
	}
	slices.SortFunc(given, func(a, b *Assignment) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition.Partition, b.Partition.Partition))
	})
	if g.cfg.OnAssigned != nil {
		if err := g.cfg.OnAssigned(ctx, given); err != nil {
			return nil, err
		}
	}
	commits := make([]Commit, len(given))
	for i, a := range given {
		commits[i] = Commit{a.Partition, a.Offset, a.LeaderEpoch, a.Metadata}
	}
	ps := make([]Partition, len(given))
	for i, a := range given {
		ps[i] = a.Partition
	}
	if err := g.commitStarts(ctx, commits, ids); err != nil {
		if g.cfg.OnLost != nil {
			g.cfg.OnLost(ps) // the owner was told that they are here
		}
		return nil, err
	}
	g.mu.Lock()
	for _, a := range given {
		offsets[a.Topic][a.Partition.Partition] = kgo.NoResetOffset().At(a.Offset).WithEpoch(a.LeaderEpoch)
		g.assigned[a.Partition] = a.Offset
		delete(g.failed, a.Partition)
	}
	g.mu.Unlock()
	g.cl.ResumeFetchPartitions(byTopic(ps))
	return offsets, nil
}

// commitStarts commits outside of the client's own bookkeeping, which begins
// only after the start is settled.
func (g *Group) commitStarts(ctx context.Context, commits []Commit, ids map[string][16]byte) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = g.cfg.Group
	req.MemberID, req.Generation = g.cl.GroupMetadata()
	for _, c := range commits {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = c.Partition.Partition, c.Offset, c.LeaderEpoch, &c.Metadata
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != c.Topic {
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic, t.TopicID = c.Topic, ids[c.Topic]
			req.Topics = append(req.Topics, t)
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	resp, err := req.RequestWith(ctx, g.cl)
	if err == nil {
		err = commitErrors(resp)
	}
	if err != nil {
		return fmt.Errorf("commit the start of group %s: %w", g.cfg.Group, convert(err))
	}
	return nil
}

// commitErrors joins what a broker said of the partitions.
func commitErrors(resp *kmsg.OffsetCommitResponse) error {
	var failed error
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, convert(err)))
			}
		}
	}
	return failed
}

// committedMetadata returns the metadata of each partition that has a commit,
// and the topics' ids.
func (g *Group) committedMetadata() (map[Partition]string, map[string][16]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	out, ids := make(map[Partition]string), make(map[string][16]byte)
	if g.fetched == nil {
		return out, ids
	}
	for _, grp := range g.fetched.Groups {
		for _, t := range grp.Topics {
			ids[t.Topic] = t.TopicID
			for _, p := range t.Partitions {
				if p.ErrorCode != 0 || p.Offset < 0 {
					continue
				}
				m := ""
				if p.Metadata != nil {
					m = *p.Metadata
				}
				out[Partition{t.Topic, p.Partition}] = m
			}
		}
	}
	g.fetched = nil
	return out, ids
}

func (g *Group) onRevoked(ctx context.Context, _ *kgo.Client, lost map[string][]int32) {
	if ps := g.forget(lost); len(ps) > 0 && g.cfg.OnRevoked != nil {
		g.cfg.OnRevoked(ctx, ps)
	}
}

func (g *Group) onLost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	if ps := g.forget(lost); len(ps) > 0 && g.cfg.OnLost != nil {
		g.cfg.OnLost(ps)
	}
}

// forget returns those of the partitions that the owner was told of.
func (g *Group) forget(lost map[string][]int32) []Partition {
	g.mu.Lock()
	defer g.mu.Unlock()
	var ps []Partition
	for topic, parts := range lost {
		for _, n := range parts {
			p := Partition{topic, n}
			if _, ok := g.assigned[p]; ok {
				delete(g.assigned, p)
				ps = append(ps, p)
			}
		}
	}
	return ps
}

func byTopic(ps []Partition) map[string][]int32 {
	m := make(map[string][]int32)
	for _, p := range ps {
		m[p.Topic] = append(m[p.Topic], p.Partition)
	}
	return m
}
