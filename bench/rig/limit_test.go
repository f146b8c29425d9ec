package rig

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/schemas/body"
)

var errDone = errors.New("done")

// runLimit reads n cells from the start of the binlog, hand-decoded as our
// tailer does, and drops them; with inflate after it has made JSON of each on
// all cores. It prints how many it has, ten times a second and at the end.
func runLimit(ctx context.Context, src cdc.Source, n int64, inflate bool) error {
	work := make(chan []cdc.Row, 64)
	var wg sync.WaitGroup
	var bad, done atomic.Int64
	if inflate {
		for range runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				var buf []byte
				for rows := range work {
					for i := range rows {
						var err error
						if buf, err = body.AppendJSON(buf[:0], rows[i].Body, 8<<20); err != nil {
							bad.Add(1)
						}
					}
					done.Add(int64(len(rows)))
				}
			})
		}
	}
	stop := make(chan struct{})
	var printer sync.WaitGroup
	printer.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Println(done.Load())
			case <-stop:
				fmt.Println(done.Load())
				return
			}
		}
	})
	seen := int64(0)
	var batch []cdc.Row
	err := src.Run(ctx, "", func(t *cdc.Transaction) error {
		for _, c := range t.Changes {
			if c.Shard.Datastore != datastore {
				continue
			}
			seen += int64(len(c.Rows))
			if inflate {
				batch = append(batch, c.Rows...)
			} else {
				done.Add(int64(len(c.Rows)))
			}
		}
		if len(batch) >= 128 || seen == n && inflate {
			work <- batch
			batch = nil
		}
		if seen == n {
			return errDone
		}
		return nil
	})
	close(work)
	wg.Wait()
	close(stop)
	printer.Wait()
	if !errors.Is(err, errDone) || bad.Load() > 0 {
		return fmt.Errorf("%w; %d bad bodies", err, bad.Load())
	}
	return nil
}
