package cdc

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/record"
)

// encoder is Session.Encode.
type encoder func(*Datastore, *cellog.Cell, record.Form) (column, merged Message)

// transcode runs until the queue is closed and empty, or ctx ends: it has the
// queue's chunks transcoded by n goroutines, and hands them to out in order. It
// closes out.
func transcode(ctx context.Context, q *queue, n int, encode encoder, out chan<- *chunk) error {
	jobs := make(chan *chunk)
	g, ctx := errgroup.WithContext(ctx)
	for range n {
		g.Go(func() error {
			for c := range jobs {
				transcodeItems(c.items, encode)
				close(c.done)
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(out)
		defer close(jobs)
		for {
			c, ok, err := q.take(ctx)
			if err != nil || !ok {
				return err
			}
			if err := hand(ctx, c, jobs, out); err != nil {
				return err
			}
		}
	})
	return g.Wait()
}

func hand(ctx context.Context, c *chunk, jobs, out chan<- *chunk) error {
	if len(c.items) == 0 {
		close(c.done)
	} else {
		select {
		case jobs <- c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case out <- c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// transcodeItems turns stored bodies into messages, inflating only those whose
// column's form wants it. The bodies of a chunk share
// buffers: the messages live about equally long.
func transcodeItems(items []item, encode encoder) {
	var buf []byte
	for i := range items {
		it := &items[i]
		r := &it.row
		form, want := it.ds.Values.Of(r.Column), len(r.Body)
		if form != record.Stored {
			want = 2*want + 256
		}
		if cap(buf)-len(buf) < want {
			buf = make([]byte, 0, max(want, min(len(items)-i, 32)*want))
		}
		start := len(buf)
		grown, form, err := record.AppendValue(buf, r.Body, form)
		if err != nil {
			it.err = fmt.Errorf("%w: added_id %d: the stored body cannot be read: %w", ErrShard, r.AddedID, err)
			continue
		}
		buf = grown
		value := buf[start:len(buf):len(buf)]
		c := cellog.Cell{
			Key: r.Key(), Datastore: it.shard.Datastore, Shard: it.shard.Shard,
			AddedID: r.AddedID, Epoch: r.Epoch, Sequence: cellog.Sequence(it.seq),
			CreatedAt: r.CreatedAt, Body: value, TraceParent: r.TraceParent,
		}
		it.column, it.merged = encode(it.ds, &c, form)
		r.Body = nil // the packet it points into may go
	}
}
