// Package workload is what the benchmarks have in common: the cells that they
// write, and the loop that a tailer is held against.
//
// It promises the same bodies for the same random numbers, so that figures of
// different benchmarks are about the same thing. Nothing but benchmarks may use it.
package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/schemas/body"
)

// Trip makes a body of about 600 bytes of JSON, like a taxi trip's.
func Trip(r *rand.Rand) []byte {
	id := func() string {
		return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", r.Uint32(), r.IntN(1<<16), r.IntN(1<<12), r.IntN(1<<12), r.Int64N(1<<48))
	}
	at := time.Date(2026, 3, 1+r.IntN(28), r.IntN(24), r.IntN(60), r.IntN(60), 0, time.UTC)
	leg := func(from, to string) string {
		return fmt.Sprintf(`{"from":{"zone":"%s","city":"New York","lat":%.4f,"lng":%.4f},"to":{"zone":"%s","city":"New York","lat":%.4f,"lng":%.4f},"miles":%d.%d}`,
			from, 40+r.Float64(), -74+r.Float64(), to, 40+r.Float64(), -74+r.Float64(), r.IntN(20), r.IntN(10))
	}
	return fmt.Appendf(nil, `{"driver_partner_uuid":"%s","city_uuid":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","trip_created_at":"%s","dropoff_at":"%s","legs":[%s,%s],"fare":%d.%02d,"tip":%d.%02d,"tolls":0.0,"payment":"credit card","currency":"USD"}`,
		id(), at.Format(time.RFC3339), at.Add(20*time.Minute).Format(time.RFC3339),
		leg("Upper East Side North", "Long Island City"), leg("Long Island City", "Astoria"), r.IntN(60), r.IntN(100), r.IntN(10), r.IntN(100))
}

var errDone = errors.New("done")

// Drop reads the first n cells of a datastore from the start of a binlog,
// hand-decoded as a tailer does, and drops them: what no tailer can be faster
// than. With inflate it first makes JSON of each, on all cores. done counts those
// that are dropped, while it runs. The error is the source's, or says how many
// bodies could not be read.
func Drop(ctx context.Context, src cdc.Source, datastore string, n int64, inflate bool, done *atomic.Int64) error {
	work := make(chan []cdc.Row, 64)
	var wg sync.WaitGroup
	var bad atomic.Int64
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
	switch {
	case !errors.Is(err, errDone):
		return err
	case bad.Load() > 0:
		return fmt.Errorf("workload: %d of %d bodies cannot be read", bad.Load(), n)
	}
	return nil
}
