package rig

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// place is where a shard's cells go.
type place struct {
	topic     string
	partition int32
}

// mark says that a place had n records when they were seen at that time.
type mark struct {
	n  int64
	at time.Time
}

// counter counts the committed records of some places, in the way of a reader
// of committed records, but looks at no more than each batch's header.
type counter struct {
	cl     *kgo.Client
	cancel context.CancelFunc
	gone   chan struct{}

	mu    sync.Mutex
	marks [][]mark // by place
	bytes int64    // of batches as they lie in Kafka
	err   error
}

// count starts to count; the places' topics must exist. An eager counter is
// told of every batch at once; any other one is told ten times a second or by
// the megabyte, so that it costs no more where batches are small.
func count(tb testing.TB, addrs []string, places []place, eager bool) *counter {
	tb.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &counter{cl: cl, cancel: cancel, gone: make(chan struct{}), marks: make([][]mark, len(places))}
	var names []string
	for _, p := range places {
		names = append(names, p.topic)
	}
	topics, err := kadm.NewClient(cl).ListTopics(ctx, names...)
	if err == nil {
		err = topics.Error()
	}
	if err != nil {
		cancel()
		cl.Close()
		tb.Fatalf("topics to count: %v", err)
	}
	ids := make(map[string][16]byte)
	for _, t := range topics {
		ids[t.Topic] = t.ID
	}
	go func() {
		defer close(c.gone)
		if err := c.run(ctx, places, ids, eager); err != nil && ctx.Err() == nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
		}
	}()
	tb.Cleanup(c.stop)
	return c
}

func (c *counter) stop() {
	c.cancel()
	<-c.gone
	c.cl.Close()
}

func (c *counter) run(ctx context.Context, places []place, ids map[string][16]byte, eager bool) error {
	type key struct {
		id        [16]byte
		partition int32
	}
	index := make(map[key]int)
	next := make([]int64, len(places))
	for i, p := range places {
		index[key{ids[p.topic], p.partition}] = i
	}
	for {
		req := kmsg.NewPtrFetchRequest()
		req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.IsolationLevel = 100, 1<<20, 64<<20, 1
		if eager {
			req.MaxWaitMillis, req.MinBytes = 1000, 1
		}
		for i, p := range places {
			part := kmsg.NewFetchRequestTopicPartition()
			part.Partition, part.FetchOffset, part.PartitionMaxBytes = p.partition, next[i], 8<<20
			if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != p.topic {
				t := kmsg.NewFetchRequestTopic()
				t.Topic, t.TopicID = p.topic, ids[p.topic]
				req.Topics = append(req.Topics, t)
			}
			t := &req.Topics[len(req.Topics)-1]
			t.Partitions = append(t.Partitions, part)
		}
		resp, err := req.RequestWith(ctx, c.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		now := time.Now()
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				i, ok := index[key{t.TopicID, p.Partition}]
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil || !ok {
					return fmt.Errorf("fetch of partition %d: %w", p.Partition, errors.Join(err, ctx.Err()))
				}
				if len(p.AbortedTransactions) > 0 {
					return errors.New("a transaction was aborted, so batches are no count of cells: run again")
				}
				n, size, after, err := batches(p.RecordBatches, next[i])
				if err != nil {
					return err
				}
				next[i] = after
				if n > 0 {
					c.add(i, n, size, now)
				}
			}
		}
	}
}

func (c *counter) add(i int, n, size int64, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.marks[i]; len(m) > 0 {
		n += m[len(m)-1].n
	}
	c.marks[i] = append(c.marks[i], mark{n, at})
	c.bytes += size
}

// total returns how many records there are, and their bytes.
func (c *counter) total() (n, size int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.marks {
		if len(m) > 0 {
			n += m[len(m)-1].n
		}
	}
	return n, c.bytes, c.err
}

// seen returns the marks of a place.
func (c *counter) seen(i int) []mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks[i][:len(c.marks[i]):len(c.marks[i])]
}

// batches counts the records and bytes of the whole record batches in b, except
// batches that end transactions, and returns the offset after the last.
func batches(b []byte, next int64) (records, size, after int64, err error) {
	const head = 61 // bytes before a batch's first record
	for len(b) >= head {
		length := int(binary.BigEndian.Uint32(b[8:])) + 12
		if b[16] != 2 || length < head {
			return 0, 0, 0, fmt.Errorf("a batch of magic %d and %d bytes: want magic 2", b[16], length)
		}
		if length > len(b) {
			break // the answer's size cut it; the next one has it
		}
		base := int64(binary.BigEndian.Uint64(b))
		control := binary.BigEndian.Uint16(b[21:])&0x20 != 0
		if base >= next { // else the broker began before the offset asked for
			next = base + int64(binary.BigEndian.Uint32(b[23:])) + 1
			if !control {
				records += int64(binary.BigEndian.Uint32(b[57:]))
				size += int64(length)
			}
		}
		b = b[length:]
	}
	return records, size, next, nil
}
