package api

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/ingest/httpapi"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
	"go.uber.org/goleak"
)

var shared struct {
	sync.Mutex
	server *mysqlserver.Server
	dir    string
	serial int
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.RemoveAll(shared.dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func server(tb testing.TB) *mysqlserver.Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		return shared.server
	}
	flavour := mysqlserver.MariaDB
	if f := os.Getenv("CELLOG_TEST_FLAVOUR"); f != "" {
		flavour = mysqlserver.Flavour(f)
	}
	dir, err := os.MkdirTemp("", "cellog-api")
	if err != nil {
		tb.Fatal(err)
	}
	srv, err := mysqlserver.Start(context.Background(), mysqlserver.Config{Dir: dir, Flavour: flavour, Binary: os.Getenv("CELLOG_MYSQLD"), ServerID: 1})
	if err != nil {
		tb.Fatal(err)
	}
	shared.server, shared.dir = srv, dir
	db, err := srv.Open("")
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("SET GLOBAL read_only = 0"); err != nil {
		tb.Fatal(err)
	}
	return srv
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

func newWorker(tb testing.TB, shards int, mod func(*ingest.Config, *httpapi.Config)) *worker {
	tb.Helper()
	srv := server(tb)
	shared.Lock()
	shared.serial++
	ds := fmt.Sprintf("t%d", shared.serial)
	shared.Unlock()
	ctx := context.Background()
	clusters := []storage.Cluster{{Name: "c0", Nodes: []storage.Node{{Name: "n0", Addr: srv.Socket(), User: "root"}}}}
	must(tb, mysql.CreateDatastore(ctx, mysql.CreateConfig{Name: ds, Shards: shards, Clusters: clusters}))
	st, err := mysql.New(mysql.Config{Clusters: clusters})
	must(tb, err)
	must(tb, st.Start(ctx))
	w := &worker{tb: tb, ds: ds, store: st, final: &finals{marks: map[cellog.ShardID]cellog.AddedID{}}}
	w.db, err = srv.Open("")
	must(tb, err)
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
		for _, err := range []error{hs.Stop(sctx), in.Stop(sctx), st.Stop(sctx), w.db.Close()} {
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
