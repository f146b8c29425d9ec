package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/body"
)

// Datastore is what the topics of a datastore must agree with.
type Datastore struct {
	Name       string
	Partitions int
}

// Stream says what to inspect in Kafka.
type Stream struct {
	Kafka      kafka.Config
	Prefix     string
	Clusters   []string
	Datastores []Datastore
}

// Kafka inspects the brokers and the topics of a stream.
func Kafka(ctx context.Context, s Stream) []Finding {
	where := "kafka"
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a, err := kafka.NewAdmin(s.Kafka)
	if err != nil {
		return []Finding{{Where: where, Check: "connection", Level: Bad, Found: err.Error(), Fix: "correct kafka.brokers"}}
	}
	defer a.Close()
	versions, err := a.Versions(ctx)
	if err != nil {
		return []Finding{{Where: where, Check: "connection", Level: Bad, Found: noAnswer(ctx, err), Want: "an answer",
			Why: "nothing is known about the brokers", Fix: "start them, or correct kafka.brokers"}}
	}
	var found []Finding
	for _, id := range slices.Sorted(maps.Keys(versions)) {
		found = append(found, brokerVersion(id, versions[id]))
	}
	for _, c := range s.Clusters {
		found = append(found, topic(ctx, a, kafka.PositionsTopic(cellog.PositionsTopicName(s.Prefix, c)), "made by `cellog datastore create`"))
	}
	found = append(found, topic(ctx, a, kafka.HeartbeatsTopic(cellog.HeartbeatsTopicName(s.Prefix)), "made by `cellog datastore create`"))
	for _, d := range s.Datastores {
		stem := s.Prefix + d.Name + "."
		names, err := a.Topics(ctx, stem)
		if err != nil {
			found = append(found, Finding{Where: where, Check: "topics of " + d.Name, Level: Bad, Found: err.Error()})
			continue
		}
		for _, n := range names {
			if column := strings.TrimPrefix(n, stem); column == "_all" || cellog.CheckColumn(column) == nil {
				found = append(found, topic(ctx, a, kafka.ColumnTopic(n, d.Partitions, body.MaxBytes), ""))
			}
		}
	}
	return found
}

// brokerVersion wants 4.0, or another broker that has its transactions: only
// since KIP-890 are they sound.
func brokerVersion(id int32, v kafka.BrokerVersion) Finding {
	f := Finding{Where: "kafka broker " + strconv.Itoa(int(id)), Check: "transactions", Level: OK, Found: v.Guess + ", as of 4.0", Want: "those of 4.0 or newer (KIP-890)"}
	if !v.SoundTransactions {
		f.Level, f.Found = Warn, v.Guess+", older than 4.0"
		f.Why, f.Fix = "a late record of an aborted transaction can get into the next one, and break exactly-once", "upgrade the brokers to Apache Kafka 4.0 or newer"
	}
	return f
}

func topic(ctx context.Context, a *kafka.Admin, spec kafka.TopicSpec, missing string) Finding {
	f := Finding{Where: "topic " + spec.Name, Check: "settings", Level: OK, Found: "as wanted"}
	err := a.CheckTopic(ctx, spec)
	switch {
	case err == nil:
	case errors.Is(err, kafka.ErrUnknownTopic):
		f.Level, f.Found, f.Fix = Warn, "not there", missing
		f.Why = "nothing was ever published by its cluster"
	default:
		text, fix, _ := strings.Cut(err.Error(), "; run: ")
		f.Level, f.Found, f.Fix = Bad, text, fix
		f.Why = fmt.Sprintf("the tailer stops the shards that need %s", spec.Name)
	}
	return f
}
