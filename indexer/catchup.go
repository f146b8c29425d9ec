package indexer

import (
	"context"
	"sync"

	"github.com/cellog/cellog/internal/kafka"
)

// catchUp knows what was in the topics when an index began, so that it is seen
// when all of that is applied. A nil catchUp is done.
type catchUp struct {
	mu    sync.Mutex
	begun bool
	done  bool
	left  map[kafka.Partition]int64 // the offset after the last record there was
}

// tail is how many offsets from the end the last record is looked for at
// first. A partition ends with the marks of its last transactions, and
// possibly with aborted ones, so the last record is not at its end.
const tail = 64

// begin looks at the topics, once.
func (c *catchUp) begin(ctx context.Context, cfg kafka.Config, topics []string) error {
	if c == nil || c.begun {
		return nil
	}
	consumer, err := kafka.NewConsumer(kafka.ConsumerConfig{Config: cfg})
	if err != nil {
		return err
	}
	defer consumer.Close()
	whole, err := consumer.Spans(ctx, kafka.FromZero(), topics...)
	if err != nil {
		return err
	}
	left := map[kafka.Partition]int64{}
	for back := int64(tail); len(whole) > 0; back *= 16 {
		var ends, deeper []kafka.Span
		for _, s := range whole {
			end := s
			if end.From = max(s.From, s.To-back); end.From < end.To {
				ends = append(ends, end)
			}
		}
		err := consumer.Read(ctx, ends, func(d kafka.Delivery) error {
			left[d.Partition] = d.Offset + 1
			return nil
		})
		if err != nil {
			return err
		}
		for _, s := range whole {
			if _, ok := left[s.Partition]; !ok && s.To-back > s.From {
				deeper = append(deeper, s)
			}
		}
		whole = deeper
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun, c.left = true, left
	return nil
}

// reached is true once: when the last partition got as far as it was.
func (c *catchUp) reached(p kafka.Partition, next int64) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return false
	}
	if end, ok := c.left[p]; ok && next >= end {
		delete(c.left, p)
	}
	c.done = len(c.left) == 0
	return c.done
}

// again takes back a reached that was not recorded.
func (c *catchUp) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = false
}
