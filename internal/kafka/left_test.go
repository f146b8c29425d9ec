package kafka

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog/internal/kafkatest"
	"github.com/cellog/cellog/schemas/record"
)

// A broker that is killed with open transactions and starts again once they have
// timed out was seen to count them as aborted without a marker in a partition:
// the next session's commit then showed their records too.
func TestAbortedByARestartingBroker(t *testing.T) {
	broker, prefix := kafkatest.Start(t), kafkatest.Prefix(t)
	cfg := Config{Addrs: broker.Addrs()}
	adm, err := NewAdmin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	const ids, partitions = 24, 8
	data := prefix + "trips.BASE"
	if _, err := adm.EnsureTopic(t.Context(), ColumnTopic(data, partitions, 1<<20)); err != nil {
		t.Fatal(err)
	}
	witness := func(i int) Partition { return Partition{Topic: fmt.Sprint(prefix, "_cellog.positions.", i)} }
	open := func(ctx context.Context, i int) (*Producer, error) {
		return OpenProducer(ctx, ProducerConfig{Config: cfg, TransactionalID: fmt.Sprint(prefix, i), TransactionTimeout: time.Second})
	}
	write := func(ctx context.Context, p *Producer, i int, value string) error {
		if err := p.Begin(ctx); err != nil {
			return err
		}
		for n := range partitions {
			m := NewMessage(data, int32(n), record.Record{Key: fmt.Append(nil, i), Value: []byte(value), Time: time.Now()})
			if err := p.Send(ctx, m); err != nil {
				return err
			}
		}
		return p.Flush(ctx)
	}
	commit := func(ctx context.Context, p *Producer, i int) error {
		if err := p.Send(ctx, NewMessage(witness(i).Topic, 0, record.Record{Key: []byte("cluster"), Value: []byte("{}"), Time: time.Now()})); err != nil {
			return err
		}
		return p.Commit(ctx)
	}
	each := func(f func(ctx context.Context, i int) error) {
		t.Helper()
		g, ctx := errgroup.WithContext(t.Context())
		for i := range ids {
			g.Go(func() error { return f(ctx, i) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range ids {
		if _, err := adm.EnsureTopic(t.Context(), PositionsTopic(witness(i).Topic)); err != nil {
			t.Fatal(err)
		}
	}
	producers := make([]*Producer, ids)
	each(func(ctx context.Context, i int) (err error) {
		if producers[i], err = open(ctx, i); err != nil {
			return err
		}
		if err := write(ctx, producers[i], i, "kept"); err != nil {
			return err
		}
		return commit(ctx, producers[i], i)
	})
	each(func(ctx context.Context, i int) error { return write(ctx, producers[i], i, "given up") })
	broker.Kill(t)
	for _, p := range producers {
		p.Close()
	}
	broker.Restart(t)

	found := make([][]Left, ids)
	each(func(ctx context.Context, i int) error {
		p, err := open(ctx, i)
		if err != nil {
			return err
		}
		defer p.Close()
		if found[i], err = adm.EndLeft(ctx, p, prefix, witness(i)); err != nil {
			return err
		}
		if again, err := adm.EndLeft(ctx, p, prefix, witness(i)); err != nil || len(again) > 0 {
			return fmt.Errorf("after they were ended: %v, %w", again, err)
		}
		if err := write(ctx, p, i, "kept"); err != nil {
			return err
		}
		return commit(ctx, p, i)
	})
	all := slices.Concat(found...)
	t.Logf("the broker left %d transactions open in partitions", len(all))
	for _, l := range all {
		if l.Committed {
			t.Errorf("%+v was never committed", l)
		}
	}

	ends, err := adm.Offsets(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for n, o := range ends {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := ReadRange(ctx, cfg, data, n, o.Start, o.End, func(f Fetched) error {
			got[string(f.Value)]++
			return nil
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := 2 * ids * partitions; got["kept"] != want || got["given up"] > 0 {
		t.Errorf("committed records: %v, want %d kept and no other", got, want)
	}
}
