package api

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/ingest/httpapi"
	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

var serial atomic.Int64

func clusterOf(a mysqlaccounts.Account, nodes ...*mysqltest.Node) []storage.Cluster {
	c := storage.Cluster{Name: "c0"}
	for i, n := range nodes {
		c.Nodes = append(c.Nodes, storage.Node{Name: fmt.Sprintf("n%d", i), Addr: n.Addr(), User: a.User, Password: a.Password})
	}
	return []storage.Cluster{c}
}

func grant(ctx context.Context, db *sql.DB, database string) error {
	if ds, shard, ok := cellog.ParseDatabaseName(database); ok {
		return mysqlaccounts.GrantDatastore(ctx, db, mysqltest.Accounts, ds, []cellog.ShardID{shard})
	}
	return nil
}

// worker is a running worker over a fresh datastore.
type worker struct {
	tb    testing.TB
	url   string
	ds    string
	store *mysql.Store
	db    *sql.DB
	http  *http.Client
	final *finals
}

// finals is a FinalMark that a test sets.
type finals struct {
	mu    sync.Mutex
	marks map[cellog.ShardID]cellog.AddedID
	known bool
}

func (f *finals) mark(_ string, shard cellog.ShardID) (cellog.AddedID, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.marks[shard], f.known
}

func (f *finals) set(shard cellog.ShardID, id cellog.AddedID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marks[shard], f.known = id, true
}

// newWorker starts a worker over a master, the shared server unless given, and
// its minions.
func newWorker(tb testing.TB, shards int, mod func(*ingest.Config, *httpapi.Config), nodes ...*mysqltest.Node) *worker {
	tb.Helper()
	if nodes == nil {
		nodes = []*mysqltest.Node{mysqltest.Server(tb)}
	}
	ds := fmt.Sprintf("t%d", serial.Add(1))
	ctx := context.Background()
	must(tb, mysql.CreateDatastore(ctx, mysql.CreateConfig{Name: ds, Shards: shards, Clusters: clusterOf(mysqltest.Accounts.Admin, nodes[0]), Grant: grant}))
	st, err := mysql.New(mysql.Config{Clusters: clusterOf(mysqltest.Accounts.Worker, nodes...), RefreshEvery: time.Second})
	must(tb, err)
	must(tb, st.Start(ctx))
	w := &worker{tb: tb, ds: ds, store: st, final: &finals{marks: map[cellog.ShardID]cellog.AddedID{}}}
	w.db = nodes[0].DB(tb, "")
	ic := ingest.Config{Store: st}
	hc := httpapi.Config{Store: st, Final: w.final.mark}
	if mod != nil {
		mod(&ic, &hc)
	}
	in, err := ingest.New(ic)
	must(tb, err)
	hc.Ingest = in
	a, err := httpapi.New(hc)
	must(tb, err)
	hs := httpapi.NewServer(a, "127.0.0.1:0")
	must(tb, hs.Start(ctx))
	w.url = "http://" + hs.Addr()
	tr := &http.Transport{MaxIdleConnsPerHost: 512}
	w.http = &http.Client{Transport: tr, Timeout: 30 * time.Second}
	tb.Cleanup(func() {
		tr.CloseIdleConnections()
		sctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		for _, err := range []error{hs.Stop(sctx), in.Stop(sctx), st.Stop(sctx)} {
			if err != nil {
				tb.Error(err)
			}
		}
	})
	return w
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request; headers come in pairs.
func (w *worker) do(method, path string, body []byte, headers ...string) answer {
	w.tb.Helper()
	req, err := http.NewRequest(method, w.url+path, bytes.NewReader(body))
	must(w.tb, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := w.http.Do(req)
	must(w.tb, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(w.tb, err)
	return answer{resp.StatusCode, resp.Header, text}
}

func (a answer) code() string {
	var p struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(a.body, &p)
	return p.Code
}

// cells counts what is stored in all shards of the worker's datastore.
func (w *worker) cells() int {
	w.tb.Helper()
	n, err := w.store.Shards(w.ds)
	must(w.tb, err)
	total := 0
	for s := range n {
		var c int
		must(w.tb, w.db.QueryRow("SELECT COUNT(*) FROM `"+cellog.DatabaseName(w.ds, cellog.ShardID(s))+"`.entity").Scan(&c))
		total += c
	}
	return total
}
