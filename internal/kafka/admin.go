package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TopicSpec is a topic as cellog wants it.
type TopicSpec struct {
	Name       string
	Partitions int
	// Configs are set when the topic is made.
	Configs map[string]string
	// Verify names those of Configs that a topic which is already there must
	// have too.
	Verify []string
}

// maxTimestampAfter is the largest value of message.timestamp.after.max.ms.
const maxTimestampAfter = "9223372036854775807"

// ColumnTopic is the topic of a column, or a merged topic: kept for ever, and
// open to timestamps ahead of the broker's clock, since one step of a clock
// would wedge the stream otherwise. maxBody is the body limit in bytes; a
// record gets 1 MiB more.
func ColumnTopic(name string, partitions, maxBody int) TopicSpec {
	return TopicSpec{
		Name:       name,
		Partitions: partitions,
		Configs: map[string]string{
			"retention.ms":                   "-1",
			"retention.bytes":                "-1",
			"cleanup.policy":                 "delete",
			"max.message.bytes":              strconv.Itoa(maxBody + 1<<20),
			"message.timestamp.type":         "CreateTime",
			"message.timestamp.after.max.ms": maxTimestampAfter,
			"unclean.leader.election.enable": "false",
		},
		Verify: []string{"retention.ms", "cleanup.policy"},
	}
}

// PositionsTopic is the topic of a cluster's positions. A start reads all of
// it, so it is compacted early and in small segments; kfake trims compacted
// topics by time too, so that is switched off.
func PositionsTopic(name string) TopicSpec {
	return TopicSpec{
		Name:       name,
		Partitions: 1,
		Configs: map[string]string{
			"cleanup.policy":                 "compact",
			"retention.ms":                   "-1",
			"segment.bytes":                  "16777216",
			"min.cleanable.dirty.ratio":      "0.1",
			"message.timestamp.after.max.ms": maxTimestampAfter,
			"unclean.leader.election.enable": "false",
		},
		Verify: []string{"cleanup.policy"},
	}
}

// HeartbeatsTopic is the topic of all clusters' heartbeats; they are of no use
// after an hour.
func HeartbeatsTopic(name string) TopicSpec {
	return TopicSpec{
		Name:       name,
		Partitions: 1,
		Configs: map[string]string{
			"cleanup.policy":                 "delete",
			"retention.ms":                   "3600000",
			"message.timestamp.after.max.ms": maxTimestampAfter,
		},
	}
}

// Admin makes and looks at topics. Its methods may be called at the same time.
type Admin struct {
	cfg Config
	cl  *kgo.Client
	adm *kadm.Client
}

// NewAdmin returns an Admin; it connects when it is used. Close it.
func NewAdmin(cfg Config) (*Admin, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(cfg.options()...)
	if err != nil {
		return nil, convert(err)
	}
	return &Admin{cfg: cfg, cl: cl, adm: kadm.NewClient(cl)}, nil
}

// Close lets the connections go.
func (a *Admin) Close() { a.cl.Close() }

// EnsureTopic makes the topic unless it is there. One that is there is taken
// if its partitions and the settings that spec.Verify names agree; otherwise
// the error is ErrTopicMismatch and holds the command that mends it. It
// returns whether it made the topic.
func (a *Admin) EnsureTopic(ctx context.Context, spec TopicSpec) (made bool, err error) {
	parts, err := a.Partitions(ctx, spec.Name)
	switch {
	case err == nil:
		return false, a.verify(ctx, spec, parts)
	case !errors.Is(err, ErrUnknownTopic):
		return false, err
	}
	replicas, minISR, err := a.replication(ctx)
	if err != nil {
		return false, err
	}
	configs := make(map[string]*string, len(spec.Configs)+1)
	for k, v := range spec.Configs {
		configs[k] = kadm.StringPtr(v)
	}
	configs["min.insync.replicas"] = kadm.StringPtr(strconv.Itoa(minISR))
	_, err = a.adm.CreateTopic(ctx, int32(spec.Partitions), int16(replicas), configs, spec.Name)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return false, fmt.Errorf("make topic %s: %w", spec.Name, convert(err))
	}
	made = err == nil // else someone else was quicker
	if err := a.settled(ctx, spec.Name); err != nil {
		return made, err
	}
	if made {
		return true, nil
	}
	if parts, err = a.Partitions(ctx, spec.Name); err != nil {
		return false, err
	}
	return false, a.verify(ctx, spec, parts)
}

// settled waits until a topic just made is usable: brokers need a moment to
// elect leaders, and the client's cache one to forget that there was none.
func (a *Admin) settled(ctx context.Context, topic string) error {
	for {
		_, err := a.Offsets(ctx, topic)
		if err == nil || !errors.Is(err, ErrUnknownTopic) && !kerr.IsRetriable(err) {
			return err
		}
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// replication follows the number of brokers: 3 and 2 from three brokers on.
func (a *Admin) replication(ctx context.Context) (replicas, minISR int, err error) {
	brokers, err := a.adm.ListBrokers(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("list brokers: %w", convert(err))
	}
	switch n := len(brokers); {
	case n >= 3:
		return 3, 2, nil
	case n == 2:
		return 2, 1, nil
	default:
		return 1, 1, nil
	}
}

// Partitions returns how many partitions a topic has, or ErrUnknownTopic. It
// asks a broker: kadm would answer from a cache, which may not know a topic
// just made, or know one just deleted.
func (a *Admin) Partitions(ctx context.Context, topic string) (int, error) {
	req := kmsg.NewPtrMetadataRequest()
	rt := kmsg.NewMetadataRequestTopic()
	rt.Topic = &topic
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, a.cl)
	if err != nil {
		return 0, convert(err)
	}
	for _, t := range resp.Topics {
		if t.Topic == nil || *t.Topic != topic {
			continue
		}
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return 0, fmt.Errorf("topic %s: %w", topic, convert(err))
		}
		return len(t.Partitions), nil
	}
	return 0, fmt.Errorf("topic %s: %w", topic, ErrUnknownTopic)
}

// Topics returns the names of all topics that start with prefix, sorted.
func (a *Admin) Topics(ctx context.Context, prefix string) ([]string, error) {
	topics, err := a.adm.ListTopicsWithInternal(ctx)
	if err != nil {
		return nil, convert(err)
	}
	var names []string
	for name := range topics {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// DeleteTopic deletes a topic; ErrUnknownTopic if there is none.
func (a *Admin) DeleteTopic(ctx context.Context, topic string) error {
	_, err := a.adm.DeleteTopic(ctx, topic)
	if err != nil {
		return fmt.Errorf("delete topic %s: %w", topic, convert(err))
	}
	return nil
}

func (a *Admin) verify(ctx context.Context, spec TopicSpec, partitions int) error {
	if partitions != spec.Partitions {
		return fmt.Errorf("topic %s has %d partitions, want %d: %w; partitions cannot be mended in place: after making sure that nothing needs it, run: kafka-topics.sh --bootstrap-server %s --delete --topic %s",
			spec.Name, partitions, spec.Partitions, ErrTopicMismatch, a.cfg.Addrs[0], spec.Name)
	}
	if len(spec.Verify) == 0 {
		return nil
	}
	all, err := a.adm.DescribeTopicConfigs(ctx, spec.Name)
	if err != nil {
		return fmt.Errorf("settings of topic %s: %w", spec.Name, convert(err))
	}
	rc, err := all.On(spec.Name, nil)
	if err == nil {
		err = rc.Err
	}
	if err != nil {
		return fmt.Errorf("settings of topic %s: %w", spec.Name, convert(err))
	}
	have := make(map[string]string, len(rc.Configs))
	for _, c := range rc.Configs {
		have[c.Key] = c.MaybeValue()
	}
	var wrong, mend []string
	for _, k := range spec.Verify {
		if have[k] != spec.Configs[k] {
			wrong = append(wrong, fmt.Sprintf("%s=%s, want %s", k, have[k], spec.Configs[k]))
			mend = append(mend, k+"="+spec.Configs[k])
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("topic %s has %s: %w; run: kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config %s",
		spec.Name, strings.Join(wrong, " and "), ErrTopicMismatch, a.cfg.Addrs[0], spec.Name, strings.Join(mend, ","))
}

// Offsets are the bounds of one partition: Start is the first offset it has,
// End the one its next record gets (open transactions included).
type Offsets struct{ Start, End int64 }

// Offsets returns the bounds of every partition of a topic.
func (a *Admin) Offsets(ctx context.Context, topic string) (map[int32]Offsets, error) {
	starts, err := a.adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, convert(err)
	}
	ends, err := a.adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, convert(err)
	}
	return bounds(topic, starts, ends)
}

// CommittedOffsets is like Offsets, but End is where a reader of committed
// records must stop for now: before the first open transaction.
func (a *Admin) CommittedOffsets(ctx context.Context, topic string) (map[int32]Offsets, error) {
	starts, err := a.adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, convert(err)
	}
	ends, err := a.adm.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return nil, convert(err)
	}
	return bounds(topic, starts, ends)
}

// OffsetAt returns the offset of a partition's first record whose time is not
// before t, or the end if there is none.
func (a *Admin) OffsetAt(ctx context.Context, topic string, partition int32, t time.Time) (int64, error) {
	// Times below zero are questions of another kind to the broker.
	listed, err := a.adm.ListOffsetsAfterMilli(ctx, max(t.UnixMilli(), 0), topic)
	if err != nil {
		return 0, convert(err)
	}
	return listedOffset(listed, topic, partition)
}

func listedOffset(listed kadm.ListedOffsets, topic string, partition int32) (int64, error) {
	o, ok := listed.Lookup(topic, partition)
	if !ok {
		return 0, fmt.Errorf("topic %s, partition %d: %w", topic, partition, ErrUnknownTopic)
	}
	return o.Offset, convert(o.Err)
}

func bounds(topic string, starts, ends kadm.ListedOffsets) (map[int32]Offsets, error) {
	if len(ends[topic]) == 0 {
		return nil, fmt.Errorf("topic %s: %w", topic, ErrUnknownTopic)
	}
	out := make(map[int32]Offsets, len(ends[topic]))
	for p, e := range ends[topic] {
		s, ok := starts.Lookup(topic, p)
		if !ok {
			return nil, fmt.Errorf("topic %s, partition %d: %w", topic, p, ErrUnknownTopic)
		}
		if err := errors.Join(e.Err, s.Err); err != nil {
			return nil, fmt.Errorf("offsets of topic %s, partition %d: %w", topic, p, convert(err))
		}
		out[p] = Offsets{Start: s.Offset, End: e.Offset}
	}
	return out, nil
}
