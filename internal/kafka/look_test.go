package kafka

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/record"
)

// Looks go on while nothing is written, and each comes after all that was
// committed before it; what is not committed holds up none.
func TestFollowLooking(t *testing.T) {
	broker, prefix := kafkatest.Start(t), kafkatest.Prefix(t)
	cfg := Config{Addrs: broker.Addrs()}
	adm, err := NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	topic := prefix + "_cellog.positions.c1"
	if _, err := adm.EnsureTopic(t.Context(), PositionsTopic(topic)); err != nil {
		t.Fatal(err)
	}
	p, err := OpenProducer(t.Context(), ProducerConfig{Config: cfg, TransactionalID: prefix + "t", TransactionTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	send := func(n int) {
		t.Helper()
		err := p.Begin(t.Context())
		if err == nil {
			err = p.Send(t.Context(), NewMessage(topic, 0, record.Record{Key: []byte("k"), Value: fmt.Append(nil, n), Time: time.Now()}))
		}
		if err == nil {
			err = p.Flush(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	type look struct {
		at   time.Time
		seen string // until then
	}
	looks := make(chan look)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		seen := ""
		done <- FollowLooking(ctx, cfg, Looking{Topic: topic, Every: 20 * time.Millisecond,
			Record: func(f Fetched) error { seen += string(f.Value); return nil },
			Looked: func(at time.Time) {
				select {
				case looks <- look{at, seen}:
				case <-ctx.Done():
				}
			}})
	}()
	// after returns what a look saw that began later than a time.
	after := func(start time.Time) string {
		t.Helper()
		for end := time.After(30 * time.Second); ; {
			select {
			case l := <-looks:
				if l.at.After(start) {
					return l.seen
				}
			case err := <-done:
				t.Fatalf("it ended: %v", err)
			case <-end:
				t.Fatal("no look")
			}
		}
	}
	want := ""
	for n := range 3 {
		send(n)
		if err := p.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		want += fmt.Sprint(n)
		// The answer may come before readers see it: the next commit waits.
		for after(time.Now()) != want {
		}
		for range 3 { // idle
			after(time.Now())
		}
	}
	send(7)
	after(time.Now())
	if err := p.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seen := after(time.Now()); seen != want {
		t.Errorf("%q, want %q", seen, want)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// The first look of one that begins now comes after all that was there.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	got, first := "", ""
	err = FollowLooking(ctx, cfg, Looking{Topic: topic, Every: time.Hour,
		Record: func(f Fetched) error { got += string(f.Value); return nil },
		Looked: func(time.Time) { first = got; cancel() }})
	if !errors.Is(err, context.Canceled) || first != want {
		t.Errorf("the first look came after %q, want %q: %v", first, want, err)
	}
}

// Looks that fail hold up no record, and are told to nobody.
func TestFollowWithoutLooks(t *testing.T) {
	old := lookPatience
	lookPatience = time.Nanosecond
	defer func() { lookPatience = old }()
	broker, prefix := kafkatest.Start(t), kafkatest.Prefix(t)
	cfg := Config{Addrs: broker.Addrs()}
	adm, err := NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	topic := prefix + "_cellog.positions.c1"
	if _, err := adm.EnsureTopic(t.Context(), PositionsTopic(topic)); err != nil {
		t.Fatal(err)
	}
	p, err := OpenProducer(t.Context(), ProducerConfig{Config: cfg, TransactionalID: prefix + "t", TransactionTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	err = p.Begin(t.Context())
	if err == nil {
		err = p.Send(t.Context(), NewMessage(topic, 0, record.Record{Key: []byte("k"), Value: []byte("v"), Time: time.Now()}))
	}
	if err == nil {
		err = p.Flush(t.Context())
	}
	if err == nil {
		err = p.Commit(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = FollowLooking(ctx, cfg, Looking{Topic: topic, Every: 20 * time.Millisecond,
		Record: func(f Fetched) error { return enough },
		Looked: func(time.Time) { t.Error("a look that failed vouches for something") }})
	if !errors.Is(err, enough) {
		t.Errorf("following ended with %v before the record came", err)
	}
}
