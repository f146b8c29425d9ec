package put

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/ingest/httpapi"
	"github.com/cellog/cellog/ingest/peer"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

const (
	clients = 256
	shards  = 16
)

// trip is a body of about 600 bytes, as a taxi trip has.
func trip(n int64) []byte {
	return fmt.Appendf(nil, `{"trip":%d,"pickup":"2019-03-01T00:%02d:%02dZ","dropoff":"2019-03-01T00:31:07Z","passengers":1,"distance":%d.%02d,"fare":%d.5,`+
		`"tip":%d.15,"tolls":0,"total":%d.65,"color":"yellow","payment":"credit card","pickup_zone":"Lenox Hill West","dropoff_zone":"UN/Turtle Bay South",`+
		`"pickup_borough":"Manhattan","dropoff_borough":"Manhattan","driver_partner_uuid":"%s","rider_uuid":"%s","city_uuid":"%s","status":"completed",`+
		`"route":[[40.7681,-73.9819],[40.7655,-73.9801],[40.7612,-73.9776]]}`,
		n, n%60, n%59, n%20, n%100, n%80, n%9, n%90, uuid.New(), uuid.New(), uuid.New())
}

func start(tb testing.TB) *mysqlserver.Server { return startServer(tb, 1) }

func startServer(tb testing.TB, id uint32) *mysqlserver.Server {
	tb.Helper()
	debug.SetGCPercent(400) // as cmd/cellog does; for all that is compared
	flavour := mysqlserver.MariaDB
	if f := os.Getenv("CELLOG_TEST_FLAVOUR"); f != "" {
		flavour = mysqlserver.Flavour(f)
	}
	srv, err := mysqlserver.Start(context.Background(), mysqlserver.Config{Dir: tb.TempDir(), Flavour: flavour, Binary: os.Getenv("CELLOG_MYSQLD"), ServerID: id,
		Options: []string{"--max-connections=1000"}})
	must(tb, err)
	tb.Cleanup(func() {
		if err := srv.Stop(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	db, err := srv.Open("")
	must(tb, err)
	defer db.Close()
	_, err = db.Exec("SET GLOBAL read_only = 0")
	must(tb, err)
	return srv
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// spread runs f from many goroutines, n times in all, and returns how long it
// took.
func spread(tb testing.TB, n int, f func(i int64) error) time.Duration {
	tb.Helper()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	begin := time.Now()
	for range clients {
		wg.Go(func() {
			for failed.Load() == nil {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				if err := f(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		tb.Fatal(*err)
	}
	return time.Since(begin)
}

// measured runs what it is given often enough and reports rate and cost.
type measured func(one func(i int64) error)

// BenchmarkPut prints puts per second of both ways and their ratio.
func BenchmarkPut(b *testing.B) {
	srv := start(b)
	var plain, http float64
	run := func(name string, rate *float64, f func(b *testing.B, srv *mysqlserver.Server, measure measured)) {
		b.Run(name, func(b *testing.B) {
			n := max(b.N, 2*clients)
			f(b, srv, func(one func(i int64) error) {
				before := cpu(b, srv)
				b.ResetTimer()
				*rate = float64(n) / spread(b, n, one).Seconds()
				b.StopTimer()
				b.ReportMetric(*rate, "rows/s")
				// With others on the machine this says more than the rate.
				b.ReportMetric(float64((cpu(b, srv)-before).Microseconds())/float64(n), "cpu-µs/row")
			})
		})
	}
	var direct, home, random, alone float64
	run("plain", &plain, plainInserts)
	run("http", &http, httpPuts)
	run("direct", &direct, directPuts)
	run("4-workers-home", &home, workerPuts(true, true))
	run("4-workers-random", &random, workerPuts(false, true))
	run("4-workers-no-forwarding", &alone, workerPuts(false, false))
	if b.Failed() {
		return
	}
	ratio := func(what string, x, y float64) {
		if x > 0 && y > 0 { // both were run
			fmt.Printf("%s, %s %s, %d clients, %d shards: %.2f\n", what, srv.Flavour(), srv.Version(), clients, shards, x/y)
		}
	}
	ratio("HTTP puts / plain inserts", http, plain)
	ratio("4 workers, any / the shard's home", random, home)
	ratio("4 workers, any without forwarding / the shard's home", alone, home)
}

// cpu returns the time that server and clients have spent computing.
func cpu(b *testing.B, srv *mysqlserver.Server) time.Duration {
	b.Helper()
	var own syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	sum := time.Duration(own.Utime.Nano() + own.Stime.Nano())
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", srv.PID()))
	if err != nil {
		return sum // not Linux: the clients' share only
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, i := range []int{11, 12} { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(f[i])
		must(b, err)
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}

// plainInserts inserts rows with one autocommit statement each.
func plainInserts(b *testing.B, srv *mysqlserver.Server, measure measured) {
	db, err := mysqlconn.Open(mysqlconn.Config{Addr: srv.Socket(), User: "root", MaxOpen: clients})
	must(b, err)
	defer db.Close()
	for s := range shards {
		for _, q := range []string{
			fmt.Sprintf("CREATE DATABASE IF NOT EXISTS plain_%04d", s),
			fmt.Sprintf("DROP TABLE IF EXISTS plain_%04d.entity", s),
			fmt.Sprintf("CREATE TABLE plain_%04d.entity (added_id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, row_key BINARY(16) NOT NULL, "+
				"column_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, ref_key BIGINT NOT NULL, body MEDIUMBLOB NOT NULL, "+
				"created_at DATETIME(6) NOT NULL, UNIQUE KEY cell (row_key, column_name, ref_key)) ENGINE = InnoDB", s),
		} {
			_, err := db.Exec(q)
			must(b, err)
		}
	}
	ctx := context.Background()
	conns := make([]*sql.Conn, clients) // are open before the clock runs; one by one, a socket's backlog is short
	for i := range conns {
		conns[i], err = db.Conn(ctx)
		must(b, err)
	}
	db.SetMaxIdleConns(clients)
	for _, c := range conns {
		must(b, c.Close())
	}
	measure(func(i int64) error {
		row := uuid.New()
		stored, err := body.Encode(nil, trip(i), body.Limits{})
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, fmt.Sprintf("INSERT INTO plain_%04d.entity (row_key, column_name, ref_key, body, created_at) VALUES (?, 'BASE', 1, ?, UTC_TIMESTAMP(6))",
			cellog.ShardOf(row, shards)), row[:], stored)
		return err
	})
}

var serial atomic.Int64

// stack makes a fresh datastore with a store and an ingest over it.
func stack(b *testing.B, srv *mysqlserver.Server) (string, *mysql.Store, *ingest.Ingest) {
	b.Helper()
	ds, st := newStore(b, srv)
	in, err := ingest.New(ingest.Config{Store: st})
	must(b, err)
	return ds, st, in
}

func clusters(srv *mysqlserver.Server) []storage.Cluster {
	return []storage.Cluster{{Name: "c0", Nodes: []storage.Node{{Name: "n0", Addr: srv.Socket(), User: "root"}}}}
}

func newStore(b *testing.B, srv *mysqlserver.Server) (string, *mysql.Store) {
	b.Helper()
	ds := fmt.Sprintf("b%d", serial.Add(1))
	must(b, mysql.CreateDatastore(context.Background(), mysql.CreateConfig{Name: ds, Shards: shards, Clusters: clusters(srv)}))
	return ds, openStore(b, srv)
}

func openStore(b *testing.B, srv *mysqlserver.Server) *mysql.Store {
	b.Helper()
	st, err := mysql.New(mysql.Config{Clusters: clusters(srv)})
	must(b, err)
	must(b, st.Start(context.Background()))
	return st
}

// httpPuts puts cells over HTTP, one a request, on kept-alive connections.
func httpPuts(b *testing.B, srv *mysqlserver.Server, measure measured) {
	ctx := context.Background()
	ds, st, in := stack(b, srv)
	api, err := httpapi.New(httpapi.Config{Ingest: in, Store: st})
	must(b, err)
	hs := httpapi.NewServer(api, "127.0.0.1:0")
	must(b, hs.Start(ctx))
	conns := make(chan *conn, clients)
	for range clients {
		c, err := net.Dial("tcp", hs.Addr())
		must(b, err)
		defer c.Close()
		conns <- &conn{c, bufio.NewReader(c), nil}
	}
	defer func() {
		must(b, hs.Stop(ctx))
		must(b, in.Stop(ctx))
		must(b, st.Stop(ctx))
	}()
	put := func(i int64) error {
		c := <-conns
		defer func() { conns <- c }()
		return c.put(ds, trip(i))
	}
	spread(b, 2*clients, put) // connections are open before the clock runs
	measure(put)
}

// hashed says that shard n mod the number of workers is worker n's.
type hashed struct {
	self  int
	peers []*peer.Peer
}

func (h hashed) Home(_ string, shard cellog.ShardID) ingest.Peer {
	if n := int(shard) % len(h.peers); n != h.self {
		return h.peers[n]
	}
	return nil
}

// workerPuts puts cells over HTTP to four workers: each to its shard's home, as
// the client library does that knows the number of shards, or to any.
func workerPuts(home, forwarding bool) func(b *testing.B, srv *mysqlserver.Server, measure measured) {
	return func(b *testing.B, srv *mysqlserver.Server, measure measured) {
		const workers = 4
		ctx := context.Background()
		client := peer.NewClient()
		defer client.Close()
		var ds string
		peers := make([]*peer.Peer, workers)
		conns := make([]chan *conn, workers)
		for w := range workers {
			var st *mysql.Store
			if w == 0 {
				ds, st = newStore(b, srv)
			} else {
				st = openStore(b, srv)
			}
			cfg := ingest.Config{Store: st}
			if forwarding {
				cfg.Peers = hashed{w, peers}
			}
			in, err := ingest.New(cfg)
			must(b, err)
			name := fmt.Sprint("worker", w)
			api, err := httpapi.New(httpapi.Config{Ingest: in, Store: st, Worker: name})
			must(b, err)
			hs := httpapi.NewServer(api, "127.0.0.1:0")
			must(b, hs.Start(ctx))
			defer func() {
				must(b, hs.Stop(ctx))
				must(b, in.Stop(ctx))
				must(b, st.Stop(ctx))
			}()
			peers[w] = client.Peer(name, "http://"+hs.Addr())
			conns[w] = make(chan *conn, clients)
			for range clients {
				c, err := net.Dial("tcp", hs.Addr())
				must(b, err)
				defer c.Close()
				conns[w] <- &conn{c, bufio.NewReader(c), nil}
			}
		}
		put := func(i int64) error {
			row := uuid.New()
			w := rand.IntN(workers)
			if home {
				w = int(cellog.ShardOf(row, shards)) % workers
			}
			c := <-conns[w]
			defer func() { conns[w] <- c }()
			return c.putRow(ds, row, trip(i))
		}
		spread(b, 2*clients, put)
		measure(put)
	}
}

// conn is a kept-alive HTTP connection. It writes requests by hand: net/http's
// client needs two more goroutines and as much time as the server, which would
// be measured too, where the plain side's client is a lean one.
type conn struct {
	net.Conn
	r   *bufio.Reader
	buf []byte
}

func (c *conn) put(ds string, body []byte) error { return c.putRow(ds, uuid.New(), body) }

func (c *conn) putRow(ds string, row uuid.UUID, body []byte) error {
	c.buf = fmt.Appendf(c.buf[:0], "PUT /v1/%s/cells/%s/BASE/1 HTTP/1.1\r\nHost: cellog\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", ds, row, len(body))
	c.buf = append(c.buf, body...)
	if _, err := c.Write(c.buf); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}

// directPuts calls ingest without HTTP between.
func directPuts(b *testing.B, srv *mysqlserver.Server, measure measured) {
	ctx := context.Background()
	ds, st, in := stack(b, srv)
	defer func() {
		must(b, in.Stop(ctx))
		must(b, st.Stop(ctx))
	}()
	measure(func(i int64) error {
		res, err := in.Put(ctx, ds, cellog.Put{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: trip(i)})
		if err == nil && res.Outcome != cellog.Created {
			err = fmt.Errorf("outcome %v", res.Outcome)
		}
		return err
	})
}
