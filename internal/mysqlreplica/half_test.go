package mysqlreplica_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellog/cellog/internal/mysqlreplica"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/mysqltest"
)

// tap is a way to a server that can be shut after some bytes from it: what is
// sent then hangs, as from a machine that is gone.
type tap struct {
	net.Listener
	left atomic.Int64 // how many bytes pass still
	shut chan struct{}
	wg   sync.WaitGroup
}

func newTap(t *testing.T, target string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &tap{Listener: l, shut: make(chan struct{})}
	p.left.Store(1 << 40)
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it is closed
			}
			s, err := net.Dial("tcp", target)
			if err != nil {
				_ = c.Close()
				continue
			}
			p.wg.Go(func() { _, _ = io.Copy(s, c); _ = s.Close() }) // either end may go at any time
			p.wg.Go(func() { p.pour(c, s); _ = c.Close() })
		}
	})
	return p
}

func (p *tap) pour(to io.Writer, from io.Reader) {
	buf := make([]byte, 1024)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if p.left.Add(-int64(n)) < 0 {
			<-p.shut
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// A master that goes while it sends a transaction leaves its minion with half of
// it: stopping that one takes no minute, and it has all that came whole.
func TestStopInTheMiddleOfATransaction(t *testing.T) {
	set := mysqltest.Cluster(t, 1)
	master, minion := set.Master, set.Minions[0]
	db := minion.DB(t, "")
	p := newTap(t, master.Addr())
	src := source(master)
	src.Addr = p.Addr().String()
	must(t, mysqlreplica.Follow(within(t), db, src))
	must(t, mysqlreplica.WaitReceivingAndApplying(within(t), db))
	master.Exec(t, "CREATE DATABASE half; CREATE TABLE half.t (id INT PRIMARY KEY, b LONGBLOB) ENGINE=InnoDB; INSERT INTO half.t VALUES (0, '')")
	set.Sync(t)
	p.left.Store(500_000)
	tx, err := master.DB(t, "").Begin()
	must(t, err)
	for i := range 20 {
		_, err := tx.Exec("INSERT INTO half.t VALUES (?, REPEAT('x', 100000))", i+1)
		must(t, err)
	}
	must(t, tx.Commit())
	waitFor(t, func() error {
		if left := p.left.Load(); left >= 0 {
			return fmt.Errorf("%d bytes have yet to come", left)
		}
		if status(t, db).Receiving {
			return nil
		}
		return errors.New("it does not receive")
	})
	// It has to have begun to apply what it has.
	waitFor(t, func() error {
		q := "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_rows_modified > 0"
		if n := minion.Query(t, q); n == "0" && mysqltest.Flavour() == mysqlserver.MySQL {
			return errors.New("no transaction is under way")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := mysqlreplica.Stop(ctx, db); err != nil {
		t.Fatal(err)
	}
	if n := minion.Query(t, "SELECT COUNT(*) FROM half.t"); n != "1" {
		t.Errorf("%s rows", n)
	}
	// It follows again, and gets the rest.
	close(p.shut)
	must(t, p.Close())
	must(t, mysqlreplica.Follow(within(t), db, source(master)))
	set.Sync(t)
	if n := minion.Query(t, "SELECT COUNT(*) FROM half.t"); n != "21" {
		t.Errorf("%s rows after it follows again", n)
	}
	p.wg.Wait()
}
