//go:build !race

// Watermill's suite has limits of its own in seconds, which the race detector
// on two cores breaks: make test runs it without, after everything else.

package triggers_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/google/uuid"

	"github.com/cellog/cellog/triggers"
)

// TestWatermillSuite runs watermill's own suite for subscribers. Order is
// promised within a row: with all messages in one row it is the whole order,
// with a row per message there is none.
func TestWatermillSuite(t *testing.T) {
	for name, c := range map[string]struct {
		row     func(*message.Message) uuid.UUID
		ordered bool
	}{
		"one row":           {func(*message.Message) uuid.UUID { return uuid.NameSpaceURL }, true},
		"a row per message": {func(m *message.Message) uuid.UUID { return uuid.MustParse(m.UUID) }, false},
		"a row per payload": {func(m *message.Message) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceURL, m.Payload) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := broker(t)
			cells := newWriter(t, cfg)
			var closing sync.Mutex
			var all []*triggers.Subscriber
			t.Cleanup(func() {
				for _, sub := range all {
					_ = sub.Close()
				}
			})
			pubSub := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
				sub, err := triggers.NewSubscriber(triggers.SubscriberConfig{
					Brokers: cfg.kafka.Addrs, Group: group, Message: unwrap, Drain: time.Second, SessionTimeout: session, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond,
				})
				if err != nil {
					t.Fatal(err)
				}
				// The suite forgets those of its test of order.
				closing.Lock()
				all = append(all, sub)
				closing.Unlock()
				return &publisher{cells, c.row}, sub
			}
			tests.TestPubSub(t,
				tests.Features{
					ConsumerGroups: true, Persistent: true, GuaranteedOrder: c.ordered,
					// Cells of a topic are the topic's: another group reads them all again.
					NewSubscriberReceivesOldMessages: false,
				},
				func(t *testing.T) (message.Publisher, message.Subscriber) { return pubSub(t, cfg.prefix+"suite") },
				pubSub,
			)
		})
	}
}
