package app

import (
	"testing"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc/publish"
	"github.com/cellog/cellog/internal/kafka"
)

// A repair reads the minions first, but none of an older epoch than what was
// published: its cells may be those of a dead branch.
func TestRepairSkipsADeadBranch(t *testing.T) {
	p := newPromotable(t)
	p.write(t, 3)
	p.publish(t, 3)
	quietly(t, p.sets[0].Minions[0], "UPDATE "+head0+" SET epoch = 0; UPDATE "+entity0+" SET row_key = REVERSE(row_key) WHERE added_id = 3")
	kcfg := kafkaConfig(p.cfg, p.env, "test")
	adm, err := kafka.NewAdmin(kcfg)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	topic := cellog.TopicName(p.cfg.Kafka.Prefix, "trips", "BASE")
	if err := adm.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	done, err := RepairShard(t.Context(), p.cfg, p.env, "c0", "trips", 0)
	if err != nil || done[topic] != 3 {
		t.Fatalf("%v %v", done, err)
	}
	pub, err := publish.New(publish.Config{Kafka: kcfg, Cluster: "c0", Prefix: p.cfg.Kafka.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	pos, err := pub.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	master := p.sets[0].Master.DB(t, "")
	datastores, err := datastoresOn(t.Context(), p.cfg, master)
	if err != nil {
		t.Fatal(err)
	}
	if err := compareLast(t.Context(), pub, entities{master}, pos.Shards, datastores, "c0"); err != nil {
		t.Errorf("what was published again: %v", err)
	}
}
