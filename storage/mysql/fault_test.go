package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
)

// proxy stands between a store and its server and breaks connections.
type proxy struct {
	tb     testing.TB
	ln     net.Listener
	server string
	// break decides, for each chunk from the client, what happens: 0 pass it
	// on, 1 cut before it, 2 pass it on and cut before the answer.
	fault atomic.Pointer[func(chunk []byte) int]
	wg    sync.WaitGroup
}

func newProxy(tb testing.TB, server string) *proxy {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{tb: tb, ln: ln, server: server}
	p.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	tb.Cleanup(func() { ln.Close(); p.wg.Wait() })
	return p
}

// node is the server behind the proxy, as a worker sees it.
func (p *proxy) node() storage.Node {
	a := mysqltest.Accounts.Worker
	return storage.Node{Name: "n0", Addr: p.ln.Addr().String(), User: a.User, Password: a.Password}
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var mute atomic.Bool
	p.wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if n > 0 && !mute.Load() {
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil || mute.Load() {
				client.Close()
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			what := 0
			if f := p.fault.Load(); f != nil {
				what = (*f)(buf[:n])
			}
			if what == 1 {
				return
			}
			if what == 2 {
				mute.Store(true)
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
			if what == 2 { // the server works on it while the client sees nothing
				_, _ = io.Copy(io.Discard, client)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func seed(t *testing.T) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("CELLOG_TEST_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s = n
	}
	t.Logf("replay with CELLOG_TEST_SEED=%d", s)
	return rand.New(rand.NewPCG(s, 1))
}

// Connections break at any packet, before or after the server had it. Whatever
// the store says must be true: stored cells stand where it says, cells that
// were not kept are not there, and the log is dense.
func TestLostAnswersAreNeverGuessed(t *testing.T) {
	p := newProxy(t, mysqltest.Server(t).Addr())
	st := newOpenStore(t, 1, func(c *Config) {
		c.Clusters[0].Nodes = []storage.Node{p.node()}
		c.RefreshEvery = time.Hour
	})
	if _, err := st.db.Exec("UPDATE cellog_meta.cluster SET column_limit = 1000"); err != nil {
		t.Fatal(err)
	}
	rnd := seed(t)
	choose := rand.New(rand.NewPCG(rnd.Uint64(), 2))
	var mu sync.Mutex
	broken := 0
	fault := func(chunk []byte) int {
		mu.Lock()
		defer mu.Unlock()
		if len(chunk) < 200 || rnd.IntN(4) > 0 { // breaks mostly writes: they are long
			return 0
		}
		broken++
		return 1 + rnd.IntN(2)
	}
	type said struct {
		put    cellog.Put
		stored cellog.Stored
		err    error
	}
	var answers []said
	p.fault.Store(&fault)
	for i := range 150 {
		var puts []cellog.Put
		for range 1 + choose.IntN(5) {
			k := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}
			if len(answers) > 0 && choose.IntN(4) == 0 {
				k = answers[choose.IntN(len(answers))].put.Key // put again, maybe another body
			}
			puts = append(puts, cellog.Put{Key: k, Body: mustBody(t, fmt.Sprint(i%3))})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		stored, errs := st.Write(ctx, st.ds, 0, puts)
		cancel()
		for j := range puts {
			answers = append(answers, said{puts[j], stored[j], errs[j]})
		}
	}
	p.fault.Store(nil)
	if broken < 10 {
		t.Fatalf("only %d connections were broken", broken)
	}
	failed := 0
	first := map[cellog.Key]cellog.AddedID{}
	for _, a := range answers {
		if a.err != nil {
			failed++
			continue
		}
		if id, ok := first[a.put.Key]; ok && id != a.stored.AddedID {
			t.Errorf("%v was said to stand at %d and at %d", a.put.Key, id, a.stored.AddedID)
		}
		first[a.put.Key] = a.stored.AddedID
		c, _, err := st.Version(t.Context(), st.ds, a.put.Key, cellog.Master)
		if err != nil {
			t.Fatalf("%v was answered %v: %v", a.put.Key, a.stored.Outcome, err)
		}
		equal, err := body.Equal(c.Body, a.put.Body)
		if err != nil {
			t.Fatal(err)
		}
		if c.AddedID != a.stored.AddedID || c.Epoch != a.stored.Epoch || !c.CreatedAt.Equal(a.stored.CreatedAt) || equal == (a.stored.Outcome == cellog.Conflict) {
			t.Errorf("%v was answered %+v, but there is %+v (equal %v)", a.put.Key, a.stored, c, equal)
		}
	}
	t.Logf("%d answers, %d errors, %d broken connections", len(answers), failed, broken)
	checkDense(t, st.db, st.ds, 0)
}

// When nobody can be asked any more, the outcome is unknown; when nothing was
// sent, nothing was kept.
func TestUnknownAndUnavailable(t *testing.T) {
	p := newProxy(t, mysqltest.Server(t).Addr())
	st := newOpenStore(t, 1, func(c *Config) {
		c.Clusters[0].Nodes = []storage.Node{p.node()}
	})
	put := func(timeout time.Duration) (cellog.Stored, error) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		stored, errs := st.Write(ctx, st.ds, 0, []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: mustBody(t, `1`)}})
		return stored[0], errs[0]
	}
	if _, err := put(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	var gone atomic.Bool
	fault := func(chunk []byte) int {
		if gone.Load() {
			return 1
		}
		if len(chunk) > 200 {
			gone.Store(true)
			return 2
		}
		return 0
	}
	p.fault.Store(&fault)
	if _, err := put(time.Second); !errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("a lost answer and a lost server: %v", err)
	}
	p.fault.Store(nil)
	if stored, err := put(5 * time.Second); err != nil || stored.AddedID != 3 {
		t.Errorf("after the server came back: %+v %v", stored, err)
	}
	p.ln.Close()
	cut := func([]byte) int { return 1 }
	p.fault.Store(&cut)
	st.clusters[0].nodes[0].write.SetMaxIdleConns(0) // as if idle connections had died
	if _, err := put(time.Second); err == nil || errors.Is(err, storage.ErrOutcomeUnknown) {
		t.Errorf("no server at all: %v", err)
	}
	checkDense(t, st.db, st.ds, 0)
}

// A write under a stale route touches no row, and the store finds the new one.
func TestStaleRoute(t *testing.T) {
	st := newOpenStore(t, 1, func(c *Config) { c.RefreshEvery = time.Hour })
	put := func() (cellog.Stored, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		stored, errs := st.Write(ctx, st.ds, 0, []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: mustBody(t, `1`)}})
		return stored[0], errs[0]
	}
	for _, step := range []struct {
		sql  string
		want string
	}{
		{"epoch = 1", "1/1"},
		{"epoch = 3", "3/2"},
		{"state = 'moving:c1'", "unavailable"},
		{"state = 'closed'", "unavailable"},
		{"state = 'open', epoch = 4", "4/3"},
	} {
		if _, err := st.db.Exec("UPDATE " + quote(st.ds, 0) + ".shard_log SET " + step.sql); err != nil {
			t.Fatal(err)
		}
		s, err := put()
		got := fmt.Sprintf("%d/%d", s.Epoch, s.AddedID)
		if err != nil {
			got = err.Error()
			var c storage.Coder
			if errors.As(err, &c) {
				got = c.Code()
			}
		}
		if got != step.want {
			t.Errorf("after %s: %s (%v), want %s", step.sql, got, err, step.want)
		}
	}
	checkDense(t, st.db, st.ds, 0)
}

// A read-only server is no master, although the account may write there.
func TestReadOnlyServerTakesNoWrites(t *testing.T) {
	st := newOpenStore(t, 1, func(c *Config) { // an account that may write to a read-only server
		c.Clusters[0].Nodes[0].User, c.Clusters[0].Nodes[0].Password = mysqltest.Accounts.Admin.User, mysqltest.Accounts.Admin.Password
	}, mysqltest.Start(t))
	write := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, errs := st.Write(ctx, st.ds, 0, []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: mustBody(t, `1`)}})
		return errs[0]
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.db.Exec("SET GLOBAL read_only = 1"); err != nil {
		t.Fatal(err)
	}
	if err := write(); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("write to a read-only server: %v", err)
	}
	if n := checkDense(t, st.db, st.ds, 0); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestDamageIsSeen(t *testing.T) {
	st := newOpenStore(t, 1, nil)
	k := cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}
	put := []cellog.Put{{Key: k, Body: mustBody(t, `{"a":"some text"}`)}}
	if _, errs := st.Write(t.Context(), st.ds, 0, put); errs[0] != nil {
		t.Fatal(errs)
	}
	entity := quote(st.ds, 0) + ".entity"
	if _, err := st.db.Exec("UPDATE " + entity + " SET body = CONCAT(body, 'x')"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.Version(t.Context(), st.ds, k, cellog.Master); !errors.Is(err, storage.ErrDamaged) {
		t.Errorf("read of a damaged body: %v", err)
	}
	if _, err := st.db.Exec("UPDATE " + entity + " SET added_id = 2, ref_key = 9"); err != nil {
		t.Fatal(err)
	}
	if _, errs := st.Write(t.Context(), st.ds, 0, put); !errors.Is(errs[0], storage.ErrDamaged) {
		t.Errorf("a row above last_added_id: %v", errs[0])
	}
}
