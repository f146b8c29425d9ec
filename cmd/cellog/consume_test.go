package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/record"
)

// A broker may begin before the time that was asked for: with the batch that
// holds it, or, for a time to come, with the next record.
func TestConsumeFromTime(t *testing.T) {
	cfg := kafka.Config{Addrs: kafkatest.Start(t).Addrs()}
	topic := kafkatest.Prefix(t) + "trips.BASE"
	adm, err := kafka.NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	if _, err := adm.EnsureTopic(t.Context(), kafka.ColumnTopic(topic, 1, 8<<20)); err != nil {
		t.Fatal(err)
	}
	p, err := kafka.OpenProducer(t.Context(), kafka.ProducerConfig{Config: cfg, TransactionalID: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i := range 10 {
		at := begin.Add(time.Duration(i) * time.Second)
		if err := p.Send(t.Context(), kafka.NewMessage(topic, 0, record.Record{Key: []byte("k"), Value: []byte("v"), Time: at})); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, untilEnd := range []bool{true, false} {
		var got []time.Duration
		err := consume(t.Context(), cfg.Addrs, topic, kafka.FromTime(begin.Add(7*time.Second)), untilEnd, 3, func(d kafka.Delivery) error {
			got = append(got, d.Time.Sub(begin))
			return nil
		}, t.Output())
		if err != nil || len(got) != 3 || got[0] != 7*time.Second {
			t.Errorf("until end %t: records of %v, error %v: want those from 7s on", untilEnd, got, err)
		}
	}
}

// A typo in the name must not wait without a word.
func TestConsumeSaysThatItWaits(t *testing.T) {
	broker := kafkatest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var said strings.Builder
	err := consume(ctx, broker.Addrs(), kafkatest.Prefix(t)+"trips.BSAE", kafka.FromZero(), false, 0, func(kafka.Delivery) error { return nil }, &said)
	if err != nil || !strings.Contains(said.String(), "trips.BSAE yet; waiting") {
		t.Errorf("said %q, error %v", said.String(), err)
	}
}

// Values are printed as JSON in whatever form they are; what is no body is
// printed as it is.
func TestConsumePrintsEveryForm(t *testing.T) {
	stored, err := body.Encode(nil, []byte(`{"a":1.50}`), body.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []record.Form{record.JSON, record.MessagePack, record.Stored, "broken"} {
		c := cellog.Cell{Key: cellog.Key{Column: "BASE"}, Datastore: "trips"}
		text, line := `{"a":1.50}`, `"value":{"a":1.50}`
		if form == "broken" {
			form, text, line = record.Stored, "x", `"value_base64":"eA=="`
			c.Body = []byte("x")
		} else if c.Body, _, err = record.AppendValue(nil, stored, form); err != nil {
			t.Fatal(err)
		}
		d := kafka.Delivery{Record: record.NewEncoder("trips").Encode(&c, form, nil)}
		for format, want := range map[string]string{"text": "\t" + text + "\n", "json": line} {
			var out strings.Builder
			if err := recordPrinter(&out, format)(d); err != nil || !strings.Contains(out.String(), want) {
				t.Errorf("%s, %s: %q, %v, want %q", form, format, out.String(), err, want)
			}
		}
	}
}
