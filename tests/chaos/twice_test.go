package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cellog/cellog"
)

// shown is how many cells twice names.
const shown = 10

// twice says, for whoever looks into it, where cells that are in Kafka more than
// once lie, and which producers wrote them.
func (c *chaos) twice() {
	var topics []string
	for _, column := range columns {
		topics = append(topics, cellog.TopicName(c.r.config.Kafka.Prefix, "trips", column))
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.r.config.Kafka.Brokers...), kgo.ConsumeTopics(topics...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		c.t.Error(err)
		return
	}
	defer cl.Close()
	seen := map[string]string{}
	for n := 0; n < shown; {
		ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second) // then it has all: nothing is written any more
		fetches := cl.PollFetches(ctx)
		cancel()
		if fetches.NumRecords() == 0 {
			return
		}
		fetches.EachRecord(func(r *kgo.Record) {
			id := ""
			for _, h := range r.Headers {
				if h.Key == "ce_id" {
					id = string(h.Value)
				}
			}
			at := fmt.Sprintf("%s/%d offset %d, producer %d epoch %d", r.Topic, r.Partition, r.Offset, r.ProducerID, r.ProducerEpoch)
			if was := seen[id]; was != "" && n < shown {
				n++
				c.t.Logf("%s twice: %s; %s", id, was, at)
			}
			seen[id] = at
		})
	}
}
