package table

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/internal/failpoint"
)

// row is a row of a batch on its way: what the batch knows of it, and the
// state of its home row after the join.
type row struct {
	ix      *indexer.Index
	in      *indexer.Row
	state   indexer.State
	changed bool
}

// home is the part of a batch whose home rows are on one server.
type home struct {
	rows []*row
	// held are the assignment numbers in force, taken those of them that are
	// new: set by step A.
	held, taken map[source]int64
}

type route struct {
	db    *sql.DB
	epoch cellog.Epoch
}

// applying is one Apply under way. Its maps are read, not written, while
// several servers are at work.
type applying struct {
	t      *Tables
	batch  indexer.Batch
	shards int
	rows   []row
	routes map[cellog.ShardID]route
	homes  map[*sql.DB]*home
	// entries and removals are set by project, by the server that has them.
	entries  map[*sql.DB][]entry
	removals map[*sql.DB][]entry
}

// Apply brings a batch into the tables; when it returns nil, the batch's
// offsets may be committed. After an error anything from nothing to all of it
// may be there: apply the batch again, together with later cells or not. Of a
// datastore one batch is applied at a time; others wait.
func (t *Tables) Apply(ctx context.Context, b indexer.Batch) error {
	done, err := t.turn(ctx, b.Datastore)
	if err != nil {
		return err
	}
	defer done()
	shards, err := t.cfg.Places.Shards(ctx, b.Datastore)
	if err != nil {
		return err
	}
	a := &applying{t: t, batch: b, shards: shards, routes: map[cellog.ShardID]route{}, homes: map[*sql.DB]*home{}}
	if err := a.begin(ctx); err != nil {
		return err
	}
	if err := a.unmoved(ctx); err != nil {
		return err
	}
	one, err := a.oneServer(ctx)
	switch {
	case err != nil:
		return err
	case one != nil:
		return a.together(ctx, one)
	}
	return a.spread(ctx)
}

// turn waits until no other Apply of the datastore is under way: two of one
// process have the same assignment numbers, so these could not keep the older
// one's projection from following the newer one's removal.
func (t *Tables) turn(ctx context.Context, datastore string) (done func(), err error) {
	t.mu.Lock()
	c := t.turns[datastore]
	if c == nil {
		c = make(chan struct{}, 1)
		t.turns[datastore] = c
	}
	t.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *applying) begin(ctx context.Context) error {
	n := 0
	for _, p := range a.batch.Parts {
		n += len(p.Rows)
	}
	a.rows = make([]row, 0, n)
	for i := range a.batch.Parts {
		p := &a.batch.Parts[i]
		for j := range p.Rows {
			a.rows = append(a.rows, row{ix: p.Index, in: &p.Rows[j]})
			r := &a.rows[len(a.rows)-1]
			to, err := a.route(ctx, r.in.Shard)
			if err != nil {
				return err
			}
			if a.homes[to.db] == nil {
				a.homes[to.db] = &home{}
			}
			a.homes[to.db].rows = append(a.homes[to.db].rows, r)
		}
	}
	return nil
}

// route asks once per shard: a batch sees one state of the routes.
func (a *applying) route(ctx context.Context, shard cellog.ShardID) (route, error) {
	if r, ok := a.routes[shard]; ok {
		return r, nil
	}
	db, epoch, err := a.t.cfg.Places.ShardDB(ctx, a.batch.Datastore, shard)
	if err != nil {
		return route{}, err
	}
	r := route{db, epoch}
	a.routes[shard] = r
	return r, nil
}

// unmoved refuses a batch after a promotion, until its indexes have gone back to
// what the new servers have: the batch may not follow that.
func (a *applying) unmoved(ctx context.Context) error {
	for _, p := range a.batch.Parts {
		a.t.mu.Lock()
		then, ok := a.t.settled[p.Index]
		a.t.mu.Unlock()
		for s, epoch := range then {
			r, err := a.route(ctx, s)
			if err != nil {
				return err
			}
			if r.epoch != epoch && ok {
				return fmt.Errorf("index %s, shard %d: %w", p.Index, s, indexer.ErrMoved)
			}
		}
	}
	return nil
}

// oneServer returns the server that has all shards, or nil.
func (a *applying) oneServer(ctx context.Context) (*sql.DB, error) {
	var one *sql.DB
	for s := range a.shards {
		r, err := a.route(ctx, cellog.ShardID(s))
		if err != nil {
			return nil, err
		}
		if s > 0 && r.db != one {
			return nil, nil
		}
		one = r.db
	}
	return one, nil
}

// together applies the batch in one transaction, so that no home row has to
// remember what is still to be removed.
func (a *applying) together(ctx context.Context, db *sql.DB) error {
	h := a.homes[db]
	if h == nil {
		h = &home{}
	}
	err := inTx(ctx, db, append(a.enter(shardsOf(h.rows)), a.lockHomes(h)...), func(ctx context.Context, tx *sql.Conn) ([]*stmt, error) {
		numbers := a.join(h)
		if err := a.project(ctx); err != nil {
			return nil, err
		}
		entries, removals := a.entries[db], a.removals[db]
		more := without(append(targets(entries), targets(removals)...), shardsOf(h.rows))
		if err := readAll(ctx, tx, a.enter(more)); err != nil {
			return nil, err
		}
		for _, r := range h.rows {
			r.changed = r.changed || len(r.state.Removals) > 0
			r.state.Removals = nil
		}
		stmts := append([]*stmt{numbers}, entryStmts(entries)...)
		stmts = append(stmts, removalStmts(removals)...)
		stmts = append(stmts, homeStmts(h.rows)...)
		return append(stmts, a.progressStmt(), a.appliedStmt(db)), nil
	})
	if err == nil {
		a.t.keepNumbers(h.taken)
	}
	return err
}

// without returns the shards that are not among those entered.
func without(shards, entered []cellog.ShardID) []cellog.ShardID {
	in := make(map[cellog.ShardID]bool, len(entered))
	for _, s := range entered {
		in[s] = true
	}
	return slices.DeleteFunc(shards, func(s cellog.ShardID) bool { return in[s] })
}

// spread applies the batch over several servers.
func (a *applying) spread(ctx context.Context) error {
	// A: home rows.
	err := onEach(ctx, a.homes, func(ctx context.Context, db *sql.DB, h *home) error {
		err := inTx(ctx, db, append(a.enter(shardsOf(h.rows)), a.lockHomes(h)...), func(context.Context, *sql.Conn) ([]*stmt, error) {
			return append([]*stmt{a.join(h)}, homeStmts(h.rows)...), nil
		})
		if err == nil {
			a.t.keepNumbers(h.taken)
		}
		return err
	})
	if err != nil {
		return err
	}
	held := map[source]int64{}
	for _, h := range a.homes {
		maps.Copy(held, h.held)
	}

	if failpoint.Hit("indexer/after-home") {
		return errFailpoint
	}

	// B: entries. Their server's progress is with them, unless more is to
	// come for that server.
	if err := a.project(ctx); err != nil {
		return err
	}
	tellAll := a.t.tellAll(a.batch)
	if tellAll {
		for s := range a.shards {
			r, err := a.route(ctx, cellog.ShardID(s))
			if err != nil {
				return err
			}
			a.entries[r.db] = a.entries[r.db][:len(a.entries[r.db]):len(a.entries[r.db])]
		}
	}
	err = onEach(ctx, a.entries, func(ctx context.Context, db *sql.DB, es []entry) error {
		stmts := entryStmts(es)
		if len(a.removals[db]) == 0 {
			stmts = append(stmts, a.progressStmt())
		}
		return a.write(ctx, db, held, false, targets(es), stmts)
	})
	if err != nil {
		return err
	}

	if failpoint.Hit("indexer/after-entries") {
		return errFailpoint
	}

	// C: removals, now that every new entry is there.
	err = onEach(ctx, a.removals, func(ctx context.Context, db *sql.DB, es []entry) error {
		return a.write(ctx, db, held, false, targets(es), append(removalStmts(es), a.progressStmt()))
	})
	if err != nil {
		return err
	}

	if failpoint.Hit("indexer/after-removals") {
		return errFailpoint
	}

	// D: the home rows forget, and the sources say how far it all is. That
	// alone is true whoever says it, and needs no lock.
	err = onEach(ctx, a.homes, func(ctx context.Context, db *sql.DB, h *home) error {
		applied, forget := a.appliedStmt(db), forgetStmts(h.rows)
		if len(forget) == 0 {
			return execAll(ctx, db, []*stmt{applied}, "")
		}
		return a.write(ctx, db, h.held, true, shardsOf(h.rows), append(forget, applied))
	})
	if err == nil && tellAll {
		a.t.told(a.batch)
	}
	return err
}

// write runs statements on a server, which must not know newer numbers than
// those held, and at home no others.
func (a *applying) write(ctx context.Context, db *sql.DB, held map[source]int64, home bool, shards []cellog.ShardID, stmts []*stmt) error {
	sources := make(map[source]bool, len(held))
	for s := range held {
		sources[s] = true
	}
	have := map[source]int64{}
	reads := a.enter(shards)
	if len(sources) > 0 {
		reads = append(reads, lockNumbers(a.batch.Datastore, sources, have))
	}
	return inTx(ctx, db, reads, func(context.Context, *sql.Conn) ([]*stmt, error) {
		numbers, err := checkNumbers(held, have, home)
		return append([]*stmt{numbers}, stmts...), err
	})
}

func onEach[V any](ctx context.Context, m map[*sql.DB]V, fn func(context.Context, *sql.DB, V) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for db, v := range m {
		g.Go(func() error { return fn(ctx, db, v) })
	}
	return g.Wait()
}

// tellEvery is the number of batches of a partition after which all servers,
// not only those touched, are told the progress.
const tellEvery = 256

// tellAll says whether it is time for that; it always is at first.
func (t *Tables) tellAll(b indexer.Batch) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := false
	for _, p := range b.Parts {
		for _, pr := range p.Progress {
			s := stream{b.Datastore, p.Index.Name(), pr.Topic, pr.Partition}
			due = due || t.quiet[s] == 0
			t.quiet[s] = max(t.quiet[s]-1, 0)
		}
	}
	return due
}

func (t *Tables) told(b indexer.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range b.Parts {
		for _, pr := range p.Progress {
			t.quiet[stream{b.Datastore, p.Index.Name(), pr.Topic, pr.Partition}] = tellEvery
		}
	}
}
