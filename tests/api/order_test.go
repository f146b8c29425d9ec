package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/cdc/binlog"
	"github.com/cellog/cellog/internal/mysqltest"
)

var errEnough = errors.New("all was read")

// 64 clients put over HTTP: the binlogs of the master and of a minion hold each
// shard's added_ids as 1, 2, 3, …
func TestBinlogOrder(t *testing.T) {
	for _, shards := range []int{1, 16} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			const clients, puts = 64, 40
			c := mysqltest.Cluster(t, 1)
			w := newWorker(t, shards, nil, c.Master, c.Minions[0])
			c.Sync(t)
			from := map[*mysqltest.Node]string{}
			readers := map[*mysqltest.Node]*binlog.Reader{}
			for _, n := range []*mysqltest.Node{c.Master, c.Minions[0]} {
				a := mysqltest.Accounts.Tailer
				r, err := binlog.New(binlog.Config{Addr: n.Addr(), User: a.User, Password: a.Password})
				must(t, err)
				readers[n] = r
				from[n], err = r.Now(t.Context())
				must(t, err)
			}
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for i := range puts {
						path := fmt.Sprintf("/v1/%s/cells/%s/BASE/%d", w.ds, uuid.New(), i)
						if a := w.do("PUT", path, []byte(`{"n":1}`)); a.status != 201 {
							t.Errorf("%d %s", a.status, a.body)
						}
					}
				})
			}
			wg.Wait()
			c.Sync(t)
			for n, r := range readers {
				last := map[cellog.ShardID]cellog.AddedID{}
				seen := 0
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				err := r.Run(ctx, from[n], func(tx *cdc.Transaction) error {
					for _, ch := range tx.Changes {
						if ch.Bad != nil {
							return ch.Bad
						}
						for _, row := range ch.Rows {
							last[ch.Shard.Shard]++
							seen++
							if row.AddedID != last[ch.Shard.Shard] {
								return fmt.Errorf("shard %d: added_id %d is at place %d of the binlog", ch.Shard.Shard, row.AddedID, last[ch.Shard.Shard])
							}
						}
					}
					if seen == clients*puts {
						return errEnough
					}
					return nil
				})
				cancel()
				if !errors.Is(err, errEnough) {
					t.Errorf("%s: %d rows seen: %v", n.Addr(), seen, err)
				}
			}
		})
	}
}
