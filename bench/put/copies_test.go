package put

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/ingest/httpapi"
	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// BenchmarkCopies prints what it costs that a put waits for its cell's copy on
// another cluster's master: rate and p99 of HTTP puts to the shards of two
// clusters, with and without. Both servers share the machine and its disk. Cells
// become final, and their copies are deleted, about half a second later.
func BenchmarkCopies(b *testing.B) {
	servers := []*mysqlserver.Server{start(b), startServer(b, 2)}
	type result struct {
		rate float64
		p99  time.Duration
	}
	results := map[storage.Ack]*result{}
	for _, ack := range []storage.Ack{storage.AckPrimary, storage.AckCopy} {
		b.Run(ack.String(), func(b *testing.B) {
			r := &result{}
			results[ack] = r
			n := max(b.N, 2*clients)
			took := make([]time.Duration, n)
			twoClusters(b, servers, ack, func(put func(i int64) error) {
				b.ResetTimer()
				r.rate = float64(n) / spread(b, n, func(i int64) error {
					began := time.Now()
					err := put(i)
					took[i-1] = time.Since(began)
					return err
				}).Seconds()
				b.StopTimer()
			})
			slices.Sort(took)
			r.p99 = took[n*99/100]
			b.ReportMetric(r.rate, "rows/s")
			b.ReportMetric(float64(r.p99.Microseconds())/1000, "p99-ms")
		})
	}
	p, c := results[storage.AckPrimary], results[storage.AckCopy]
	if !b.Failed() && p != nil && c != nil {
		fmt.Printf("ack copy / ack primary, %s %s, %d clients, %d shards on 2 clusters: rate %.2f, p99 %.2f\n",
			servers[0].Flavour(), servers[0].Version(), clients, shards, c.rate/p.rate, float64(c.p99)/float64(p.p99))
	}
}

// marks says that everything is final that was there at the look before the
// last one.
type marks struct {
	mu       sync.Mutex
	now      map[cellog.ShardID]storage.Mark
	previous map[cellog.ShardID]storage.Mark
}

func (m *marks) Mark(_ string, shard cellog.ShardID) (storage.Mark, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.previous[shard], true
}

func (m *marks) Changed() <-chan struct{} { return nil }

func (m *marks) look(ctx context.Context, st *mysql.Store, ds string) {
	now := map[cellog.ShardID]storage.Mark{}
	for s := range cellog.ShardID(shards) {
		if last, err := st.Last(ctx, ds, s, cellog.Master); err == nil {
			now[s] = storage.Mark{Epoch: 1, First: 1, Last: last}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.previous, m.now = m.now, now
}

// twoClusters measures puts over HTTP to a new datastore on two clusters.
func twoClusters(b *testing.B, servers []*mysqlserver.Server, ack storage.Ack, measure func(put func(i int64) error)) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ds := fmt.Sprintf("b%d", serial.Add(1))
	var clusters []storage.Cluster
	for i, s := range servers {
		clusters = append(clusters, storage.Cluster{Name: fmt.Sprint("c", i), Nodes: []storage.Node{{Name: "n0", Addr: s.Socket(), User: "root"}}})
	}
	must(b, mysql.CreateDatastore(ctx, mysql.CreateConfig{Name: ds, Shards: shards, Clusters: clusters}))
	for i, s := range servers {
		db, err := s.Open("")
		must(b, err)
		id, err := mysqlreplica.Identity(ctx, db)
		must(b, err)
		records := []mysql.TermRecord{{Cluster: fmt.Sprint("c", 1-i), Term: 1, State: "open"}, {Cluster: fmt.Sprint("c", i), Term: 1, State: "open", Node: "n0", ServerUUID: id.ID}}
		must(b, mysql.LoadTerms(ctx, db, records))
		must(b, db.Close())
	}
	m := &marks{}
	st, err := mysql.New(mysql.Config{Clusters: clusters, Ack: func(string) storage.Ack { return ack }, Marks: m})
	must(b, err)
	must(b, st.Start(ctx))
	in, err := ingest.New(ingest.Config{Store: st})
	must(b, err)
	api, err := httpapi.New(httpapi.Config{Ingest: in, Store: st})
	must(b, err)
	hs := httpapi.NewServer(api, "127.0.0.1:0")
	must(b, hs.Start(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { mysql.NewDrainer(st).Run(ctx) })
	wg.Go(func() {
		for ctx.Err() == nil {
			m.look(ctx, st, ds)
			select {
			case <-ctx.Done():
			case <-time.After(250 * time.Millisecond):
			}
		}
	})
	conns := make(chan *conn, clients)
	for range clients {
		c, err := net.Dial("tcp", hs.Addr())
		must(b, err)
		defer c.Close()
		conns <- &conn{c, bufio.NewReader(c), nil}
	}
	put := func(i int64) error {
		c := <-conns
		defer func() { conns <- c }()
		return c.put(ds, trip(i))
	}
	spread(b, 2*clients, put)
	measure(put)
	must(b, hs.Stop(ctx))
	must(b, in.Stop(ctx))
	cancel()
	wg.Wait()
	must(b, st.Stop(context.Background()))
}
