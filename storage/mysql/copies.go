package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/forward"
	"github.com/cellog/cellog/storage"
)

// standing is a cell of a batch that stands on its primary.
type standing struct {
	group *group
	put   cellog.Put // as stored
	at    cellog.Stored
	known *known
}

// secure makes the cells of a batch as safe as the datastore's ack asks, before
// they are answered: numbered copies on other clusters' masters, or, where there
// is none, final. A cell for which that cannot be done by the end of ctx is
// answered storage.ErrOutcomeUnknown.
func (s *Store) secure(ctx context.Context, b *batch, datastore string, shard cellog.ShardID, owner string) {
	ack := s.cfg.Ack(datastore)
	if ack == storage.AckPrimary {
		return
	}
	left := s.notFinal(b.standing, datastore, shard)
	if ack == storage.AckCopy && len(left) > 0 {
		var err error
		if left, err = s.copy(ctx, left, datastore, shard, owner); errors.Is(err, errNewTerm) {
			unsafe(b, left, err)
			return
		}
	}
	for len(left) > 0 {
		changed := s.cfg.Marks.Changed() // before the look, so that nothing is missed
		if left = s.notFinal(left, datastore, shard); len(left) == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			unsafe(b, left, fmt.Errorf("no other cluster's master took its copy, and it is not final yet: %w", ctx.Err()))
			return
		}
	}
}

// unsafe takes back the answers to cells.
func unsafe(b *batch, cells []standing, why error) {
	for _, c := range cells {
		for _, i := range c.group.members {
			if b.errs[i] == nil {
				b.errs[i] = unknownOutcome(why)
			}
		}
	}
}

// notFinal returns the cells that are not known to be final. A primary of an
// older epoch than Kafka names was deposed: what it has may be nowhere else.
func (s *Store) notFinal(cells []standing, datastore string, shard cellog.ShardID) []standing {
	m, ok := s.cfg.Marks.Mark(datastore, shard)
	if !ok {
		return cells
	}
	var left []standing
	for _, c := range cells {
		if c.at.AddedID > m.Last || c.known.epoch < m.Epoch {
			left = append(left, c)
		}
	}
	return left
}

// copy stores numbered copies of cells and returns those that have fewer than
// they should.
func (s *Store) copy(ctx context.Context, cells []standing, datastore string, shard cellog.ShardID, owner string) ([]standing, error) {
	have := 0
	var errs []error
	holders, _ := s.holders(owner)
	for _, n := range holders {
		if !n.breaker.Allow() {
			continue
		}
		err := n.copies.store(ctx, n, copyOf{owner: owner, datastore: datastore, shard: shard, cells: cells})
		switch {
		case err == nil:
			n.breaker.Success()
			if have++; have == s.cfg.Copies {
				return nil, nil
			}
			continue
		case unreachable(ctx, err):
			n.breaker.Failure()
		default:
			n.breaker.Success()
		}
		if errors.Is(err, errNewTerm) {
			return cells, err
		}
		errs = append(errs, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err))
	}
	s.metrics.uncopied.Add(float64(len(cells)))
	return cells, errors.Join(errs...)
}

// copyOf is the cells of one shard on their way to a holder.
type copyOf struct {
	owner     string
	datastore string
	shard     cellog.ShardID
	cells     []standing
	done      chan error
}

// copyLine is where copies for one holder wait, so that those of many shards
// share a transaction: one goes at a time, and takes along what has come
// meanwhile.
type copyLine struct {
	mu      sync.Mutex
	running bool
	waiting []copyOf
	ended   sync.WaitGroup
}

// copyTimeout bounds one transaction of copies.
const copyTimeout = 3 * time.Second

// store has copies stored and waits for it; when ctx ends first they may be.
func (l *copyLine) store(ctx context.Context, n *node, c copyOf) error {
	c.done = make(chan error, 1)
	l.mu.Lock()
	l.waiting = append(l.waiting, c)
	if !l.running {
		l.running = true
		l.ended.Go(func() { l.run(n) })
	}
	l.mu.Unlock()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run stores until nothing waits.
func (l *copyLine) run(n *node) {
	for {
		l.mu.Lock()
		if len(l.waiting) == 0 {
			l.running = false
			l.mu.Unlock()
			return
		}
		take, cells, size := 0, 0, 0
		for ; take < len(l.waiting) && cells < groupCells && size < groupBytes; take++ {
			for _, c := range l.waiting[take].cells {
				cells++
				size += len(c.put.Body)
			}
		}
		together := append([]copyOf(nil), l.waiting[:take]...)
		l.waiting = append(l.waiting[:0], l.waiting[take:]...)
		l.mu.Unlock()
		storeTogether(n, together)
	}
}

// demand is what a transaction of copies demands of its holder.
type demand struct {
	owner string
	term  cellog.Term // of the cells' shard: no newer one of owner may be known
	hold  cellog.Term // of the holder, as the cells' primary knew it
}

// storeTogether stores copies in one transaction for each demand, which is one
// but for times of change.
func storeTogether(n *node, copies []copyOf) {
	ctx, cancel := context.WithTimeout(context.Background(), copyTimeout)
	defer cancel()
	var order []demand
	by := map[demand][]copyOf{}
	for _, c := range copies {
		d, err := c.demand(n.cluster)
		if err != nil {
			c.done <- err
			continue
		}
		if by[d] == nil {
			order = append(order, d)
		}
		by[d] = append(by[d], c)
	}
	for _, d := range order {
		err := n.insertNumbered(ctx, d, by[d])
		for _, c := range by[d] {
			c.done <- err
		}
	}
}

// demand returns the strictest of what the cells' primary knew: they were seen in
// one transaction or a few.
func (c *copyOf) demand(holder string) (demand, error) {
	d := demand{owner: c.owner}
	for i, cell := range c.cells {
		hold, ok := cell.known.holders[holder]
		if !ok {
			return d, fmt.Errorf("the primary of cluster %s has no term of cluster %s in cellog_meta.terms", c.owner, holder)
		}
		if i == 0 {
			d.term, d.hold = cell.known.term, hold
		}
		d.term, d.hold = min(d.term, cell.known.term), max(d.hold, hold)
	}
	return d, nil
}

// runs returns the cells in runs: of one epoch, with added_ids that follow each
// other. What a write stored is one, cells that stood there before are others.
func (c *copyOf) runs() (out [][]cellog.Cell) {
	cells := make([]cellog.Cell, len(c.cells))
	for i, s := range c.cells {
		cells[i] = cellog.Cell{Key: s.put.Key, Body: s.put.Body, TraceParent: s.put.TraceParent, Shard: c.shard, Epoch: s.at.Epoch, AddedID: s.at.AddedID, CreatedAt: s.at.CreatedAt}
	}
	slices.SortFunc(cells, func(a, b cellog.Cell) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.AddedID, b.AddedID))
	})
	for first, i := 0, 1; i <= len(cells); i++ {
		if i == len(cells) || cells[i].Epoch != cells[first].Epoch || cells[i].AddedID != cells[i-1].AddedID+1 {
			out, first = append(out, cells[first:i]), i
		}
	}
	return out
}

// insertNumbered is one transaction on the holder: its terms hold still, are
// what is demanded, and the copies go in; or nothing does.
func (n *node) insertNumbered(ctx context.Context, d demand, copies []copyOf) error {
	n.mu.Lock()
	self := n.self
	n.mu.Unlock()
	if self == "" {
		return errors.New("it was not looked at yet")
	}
	sb := append(make([]byte, 0, 1000), begin+"SET @ok = NULL; SELECT 0 INTO @ok FROM cellog_meta.terms AS c JOIN cellog_meta.terms AS h WHERE c.cluster = "...)
	sb = appendText(sb, d.owner)
	newest := d.term
	if failpoint.Hit("storage/copies-of-any-term") {
		newest = math.MaxInt32 // a test shows what the fence is for
	}
	sb = append(sb, " AND c.term <= "+strconv.Itoa(int(newest))+" AND h.cluster = "...)
	sb = appendText(sb, n.cluster)
	sb = append(sb, " AND h.term = "+strconv.Itoa(int(d.hold))+" AND h.state = 'open' AND h.server_uuid = "+self+" LOCK IN SHARE MODE; "+
		"INSERT INTO cellog_buffer.numbered_copies (cluster, datastore, shard, epoch, last_id, tag, first_id, term, cells, buffered_at) VALUES "...)
	var args []any
	for i := range copies {
		c := &copies[i]
		for _, run := range c.runs() {
			if len(args) > 0 {
				sb = append(sb, ',')
			}
			// @ok is 0, or NULL, which no column of these takes.
			sb = fmt.Appendf(sb, "(?, ?, %d, %d, %d, %d, %d, @ok + %d, ?, NOW(6))",
				c.shard, run[0].Epoch, run[len(run)-1].AddedID, rand.Int64(), run[0].AddedID, d.term)
			args = append(args, d.owner, c.datastore, forward.AppendRun(nil, run))
		}
	}
	sb = append(sb, "; COMMIT"...)
	conn, err := n.write.Conn(ctx)
	if err != nil {
		return err
	}
	if _, err = conn.ExecContext(ctx, string(sb), args...); err == nil {
		_ = conn.Close() // returns it to the pool
		return nil
	}
	refused := mysqlconn.Code(err) == errBadNull
	if refused {
		err = n.whyRefused(ctx, conn, d)
	}
	drop(conn) // which rolls back, whatever it was
	return err
}

// whyRefused tells a newer claim of the cells' cluster, which ends all, from a
// holder that is not what the primary took it for.
func (n *node) whyRefused(ctx context.Context, conn *sql.Conn, d demand) error {
	var term sql.NullInt64
	err := conn.QueryRowContext(ctx, "SELECT MAX(term) FROM cellog_meta.terms WHERE cluster = ?", d.owner).Scan(&term)
	switch {
	case err != nil:
		return fmt.Errorf("it refused the copies, and does not say why: %w", err)
	case !term.Valid:
		return fmt.Errorf("it has no term of cluster %s in cellog_meta.terms", d.owner)
	case term.Int64 > int64(d.term):
		return fmt.Errorf("%w: %s has term %d, the cell's primary %d", errNewTerm, d.owner, term.Int64, d.term)
	}
	return fmt.Errorf("it is not the server that term %d of its cluster opened", d.hold)
}

const countCopies = "SELECT (SELECT COUNT(*) FROM cellog_buffer.buffered_cells) + (SELECT COALESCE(SUM(last_id - first_id + 1), 0) FROM cellog_buffer.numbered_copies)"

// CountCopies returns how many copies a server holds of other clusters' cells,
// numbered and not.
func CountCopies(ctx context.Context, db *sql.DB) (n int, err error) {
	err = db.QueryRowContext(ctx, countCopies).Scan(&n)
	return n, err
}

// appendText appends a string as an SQL literal.
func appendText(sb []byte, s string) []byte {
	return append(append(append(sb, '\''), strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s)...), '\'')
}
