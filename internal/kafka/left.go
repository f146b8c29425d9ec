package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Left is a transaction that its coordinator holds for ended and that a
// partition still has open.
type Left struct {
	At Partition
	// Epoch is the producer epoch that wrote it, Start its first offset there.
	Epoch int16
	Start int64
	// Committed says whether it was committed, or else aborted.
	Committed bool

	coordinator int32
}

// EndLeft ends the transactions that earlier producers of p's transactional id
// left open in partitions of topics whose names start with prefix, and returns
// them. Call it after OpenProducer and before anything else is read or written.
//
// OpenProducer returns once the coordinator holds everything earlier for ended.
// That is not enough with Apache Kafka 4.4 (one broker, killed and restarted):
//
//  1. The starting broker reads old metadata, in which it leads its partitions,
//     and becomes coordinator. It finds a transaction past its timeout and logs
//     PrepareAbort; the markers wait, for its own port is not open yet.
//  2. It reads on, to where it was fenced: no partition has a leader. It logs
//     "Couldn't find leader endpoint for partitions", takes them for deleted,
//     writes no marker and logs CompleteAbort. One that was in PrepareCommit
//     when the broker died should meet the same.
//  3. The partitions have the transaction open still. What p writes there, with
//     the same producer id, counts as more of it, and p's next commit makes the
//     aborted records visible: each cell is there twice.
//
// The marker of KIP-664, as kafka-transactions.sh writes it, ends it instead.
//
// Each transaction writes to witness, and nobody else does: the newest
// record there tells whether the one left was committed.
func (a *Admin) EndLeft(ctx context.Context, p *Producer, prefix string, witness Partition) ([]Left, error) {
	if !p.transactional {
		return nil, nil
	}
	id, epoch, err := p.cl.ProducerID(ctx)
	if err != nil {
		return nil, convert(err)
	}
	left, err := a.left(ctx, prefix, id, epoch)
	if err != nil || len(left) == 0 {
		return nil, err
	}
	if err := a.judge(ctx, left, id, witness); err != nil {
		return nil, err
	}
	for _, l := range left {
		marks, err := a.adm.WriteTxnMarkers(ctx, kadm.TxnMarkers{
			ProducerID: id, ProducerEpoch: epoch, Commit: l.Committed, CoordinatorEpoch: max(l.coordinator, 0),
			Topics: kadm.TopicsSet{l.At.Topic: {l.At.Partition: {}}},
		})
		if err == nil {
			err = marks[id].Topics[l.At.Topic].Partitions[l.At.Partition].Err
		}
		if err != nil {
			return nil, fmt.Errorf("end the transaction that a broker left open in %s, partition %d, from offset %d: %w; if that is not permitted, grant ALTER on the cluster, or stop the tailer and run: kafka-transactions.sh --bootstrap-server %s abort --topic %s --partition %d --start-offset %d",
				l.At.Topic, l.At.Partition, l.Start, convert(err), a.cfg.Addrs[0], l.At.Topic, l.At.Partition, l.Start)
		}
	}
	return left, nil
}

// left asks the partitions which transactions of older epochs they have open.
func (a *Admin) left(ctx context.Context, prefix string, id int64, epoch int16) ([]Left, error) {
	topics, err := a.adm.ListTopics(ctx)
	if err != nil {
		return nil, convert(err)
	}
	req := kmsg.NewPtrDescribeProducersRequest()
	for name, t := range topics {
		if !strings.HasPrefix(name, prefix) || t.Err != nil {
			continue
		}
		rt := kmsg.NewDescribeProducersRequestTopic()
		rt.Topic = name
		rt.Partitions = t.Partitions.Numbers()
		req.Topics = append(req.Topics, rt)
	}
	if len(req.Topics) == 0 {
		return nil, nil
	}
	var out []Left
	for _, shard := range a.cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, fmt.Errorf("describe producers: %w", convert(shard.Err))
		}
		for _, t := range shard.Resp.(*kmsg.DescribeProducersResponse).Topics {
			for _, p := range t.Partitions {
				switch err := kerr.ErrorForCode(p.ErrorCode); {
				case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.UnknownTopicOrPartition):
					continue // not ours: those are read at every start; or deleted meanwhile
				case err != nil:
					return nil, fmt.Errorf("describe producers of %s, partition %d: %w", t.Topic, p.Partition, convert(err))
				}
				for _, w := range p.ActiveProducers {
					if w.ProducerID == id && w.CurrentTxnStartOffset >= 0 && w.ProducerEpoch < int32(epoch) {
						out = append(out, Left{
							At:    Partition{t.Topic, p.Partition},
							Epoch: int16(w.ProducerEpoch), Start: w.CurrentTxnStartOffset, coordinator: w.CoordinatorEpoch,
						})
					}
				}
			}
		}
	}
	return out, nil
}

// judge says of each transaction whether it was committed. One that is open in
// witness too is not visible there: nobody can have acted on it, so it counts as
// aborted. (If the broker died while it wrote the markers of a commit, and some
// partitions but not witness have theirs, that is wrong; nothing tells.)
func (a *Admin) judge(ctx context.Context, left []Left, id int64, witness Partition) error {
	for _, l := range left {
		if l.At == witness {
			return nil
		}
	}
	all, err := a.Offsets(ctx, witness.Topic)
	if err != nil {
		return err
	}
	o := all[witness.Partition]
	newest := int16(-1)
	err = ReadRange(ctx, a.cfg, witness.Topic, witness.Partition, o.Start, o.End, func(f Fetched) error {
		newest = -1
		if f.producerID == id {
			newest = f.producerEpoch
		}
		return nil
	})
	for i := range left {
		left[i].Committed = left[i].Epoch == newest
	}
	return err
}
