package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/storage"
)

// maxAttempts bounds how often one Write starts over after a deadlock, a lock
// timeout, a stale route or a lost connection that kept nothing.
const maxAttempts = 5

// errRedo marks an attempt that kept nothing and may be made again.
var errRedo = errors.New("attempt undone")

// errMaybe marks an attempt whose answer was lost after the INSERT was sent.
var errMaybe = errors.New("answer lost")

// Write is WriteNext with puts that are there already.
func (s *Store) Write(ctx context.Context, datastore string, shard cellog.ShardID, puts []cellog.Put) (stored []cellog.Stored, errs []error) {
	return s.WriteNext(ctx, datastore, shard, func() []cellog.Put { return puts })
}

// WriteNext stores cells of one shard in one transaction, in their order. It
// calls take, once, when the shard's server has room for the cells; more may
// gather until then. They may share the transaction with other shards' cells.
// The Body of each put is in stored form (schemas/body). For each put either
// errs[i] is nil and stored[i] says how it ended, or errs[i] says why not:
// storage.ErrOutcomeUnknown means that the cell may be stored, any other error
// that nothing of it was kept. WriteNext gives up when ctx is done; it does not
// keep puts after it returns.
func (s *Store) WriteNext(ctx context.Context, datastore string, shard cellog.ShardID, take func() []cellog.Put) (stored []cellog.Stored, errs []error) {
	p := &passenger{take: take, wantSafe: s.cfg.Ack(datastore) != storage.AckPrimary}
	s.travel(ctx, p, datastore, shard)
	if len(p.batch.standing) > 0 {
		s.secure(ctx, p.batch, datastore, shard, p.route.Cluster)
	}
	s.metrics.observeWrite(p.batch, time.Since(p.start))
	return p.batch.stored, p.batch.errs
}

// put writes cells that are safe elsewhere: it does not wait until they are here.
// epoch is that of the primary that answered.
func (s *Store) put(ctx context.Context, datastore string, shard cellog.ShardID, puts []cellog.Put) (stored []cellog.Stored, errs []error, epoch cellog.Epoch) {
	p := &passenger{take: func() []cellog.Put { return puts }}
	s.travel(ctx, p, datastore, shard)
	s.metrics.observeWrite(p.batch, time.Since(p.start))
	return p.batch.stored, p.batch.errs, p.route.Epoch
}

// travel writes p's batch to its primary: by itself, with others, or led by
// another one.
func (s *Store) travel(ctx context.Context, p *passenger, datastore string, shard cellog.ShardID) {
	if n, err := s.place(p, datastore, shard); err == nil && n.line.enter(ctx, p) {
		defer n.line.leave()
		s.lead(ctx, n, p)
	}
	if p.batch == nil { // no route to any server yet, or no time left
		p.fill()
	}
	s.write(ctx, p, datastore, shard)
}

// lead writes what the passengers that go with p can write together.
func (s *Store) lead(ctx context.Context, n *node, p *passenger) {
	defer func() { // also after a panic: the others must not wait for ever
		for _, other := range p.group {
			other.wake <- false
		}
	}()
	n.line.gather(p)
	if len(p.group) > 0 && !s.unlocked {
		s.join(ctx, n, append([]*passenger{p}, p.group...))
	}
}

// place finds the passenger's route and the node at its end.
func (s *Store) place(p *passenger, datastore string, shard cellog.ShardID) (n *node, err error) {
	if p.route, err = s.routes.Route(datastore, shard); err != nil {
		return nil, err
	}
	return s.node(p.route)
}

// write decides what is still open of a passenger's batch, in transactions of
// its own.
func (s *Store) write(ctx context.Context, p *passenger, datastore string, shard cellog.ShardID) {
	b, last := p.batch, p.err
	if errors.Is(p.err, errMaybe) {
		last = s.settle(ctx, p.route, b, p.err)
	}
	for attempt := 0; attempt < maxAttempts && !b.done(); attempt++ {
		if attempt > 0 && !pause(ctx, attempt) {
			break
		}
		route, err := s.routes.Route(datastore, shard)
		if err != nil {
			last = err
			if !errors.Is(err, storage.ErrUnavailable) {
				break
			}
			s.lookFor(ctx, datastore, shard)
			continue
		}
		p.route = route
		last = s.settle(ctx, route, b, s.attempt(ctx, route, b))
	}
	if !b.done() {
		b.fail(unavailable(ctx, last))
	}
}

// settle draws the consequences of an attempt's error, and returns what is left
// of it.
func (s *Store) settle(ctx context.Context, route storage.Route, b *batch, err error) error {
	if errors.Is(err, errMaybe) {
		s.metrics.resolves.Inc()
		err = s.resolve(ctx, route, b)
	}
	switch {
	case err == nil:
	case errors.Is(err, storage.ErrStaleRoute):
		s.lookFor(ctx, route.Datastore, route.Shard)
	case errors.Is(err, errRedo):
		s.metrics.redos.Inc()
	default: // final: unknown outcome, or damage
		b.fail(err)
	}
	return err
}

// unavailable turns the last reason why nothing could be kept into an error
// that says so.
func unavailable(ctx context.Context, last error) error {
	var c storage.Coder
	switch {
	case errors.As(last, &c):
		return last
	case last == nil:
		last = ctx.Err()
	}
	return fmt.Errorf("%w (%w)", storage.ErrUnavailable, last)
}

// pause waits before another attempt; false when ctx is done.
func pause(ctx context.Context, attempt int) bool {
	t := time.NewTimer(time.Duration(attempt*attempt) * 5 * time.Millisecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// attempt makes one transaction. A nil error means that every group that could
// be decided is; see errRedo, errMaybe and storage.ErrStaleRoute.
func (s *Store) attempt(ctx context.Context, route storage.Route, b *batch) error {
	n, err := s.node(route)
	if err != nil {
		return err
	}
	if !n.breaker.Allow() {
		return fmt.Errorf("node %s/%s did not answer lately: %w: %w", n.cluster, n.Name, errRedo, storage.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.TransactionTimeout)
	defer cancel()
	conn, err := n.write.Conn(ctx)
	if err != nil {
		n.breaker.Failure()
		s.lookFor(ctx, route.Datastore, route.Shard)
		return fmt.Errorf("%w: %w", errRedo, err)
	}
	n.breaker.Success()
	t := &tx{s: s, conn: conn, route: route, db: quote(route.Datastore, route.Shard), batch: b, guard: n.mayWrite(), columns: &s.byName[route.Cluster].columns}
	defer t.close()
	err = t.run(ctx)
	if errors.Is(err, errMaybe) && ctx.Err() != nil {
		n.breaker.Failure() // it takes connections and gives no answers
	}
	return err
}

// tx is one attempt's transaction on one connection.
type tx struct {
	s       *Store
	conn    *sql.Conn
	route   storage.Route
	db      string
	batch   *batch
	guard   string // see guard
	columns *columnCache
	added   []string // columns that this transaction enters

	begun, committed bool
}

func (t *tx) run(ctx context.Context) error {
	if err := t.admitColumns(ctx); err != nil {
		return err
	}
	groups := t.batch.open()
	if len(groups) == 0 {
		return nil // all were refused
	}
	first := t.takeNumbers(len(groups))
	for {
		at, err := t.insert(ctx, first, groups)
		if err == nil {
			t.answer(groups, at)
			return nil
		}
		if mysqlconn.Code(err) == errBadNull {
			return fmt.Errorf("%v: %w", t.route, storage.ErrStaleRoute)
		}
		if !mysqlconn.IsDuplicate(err) {
			return t.lost(err)
		}
		// The statement undid itself, and the lock and the numbers stay.
		left, err := t.withoutDuplicates(ctx, groups)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil // nothing is left to store: close rolls back
		}
		first = "UPDATE " + t.db + ".shard_log SET last_added_id = last_added_id - " + strconv.Itoa(len(groups)-len(left)) + " WHERE id = 1; "
		groups = left
	}
}

// errBadNull is the server's error for a NULL in a NOT NULL column, which is
// what the INSERT meets when the route is stale: the numbers are NULL then.
const errBadNull = 1048

// answer decides the groups that were stored.
func (t *tx) answer(groups []*group, at taken) {
	t.committed = true
	t.columns.add(t.route.Datastore, t.added)
	for i, g := range groups {
		t.batch.created(g, cellog.Stored{Shard: t.route.Shard, AddedID: at.before + cellog.AddedID(i+1), Epoch: t.route.Epoch, CreatedAt: at.createdAt}, at.known)
	}
}

// taken is the numbers of a transaction: the last one before it, and its time.
type taken struct {
	before    cellog.AddedID
	createdAt time.Time
	known     *known // nil unless the batch wants it
}

// lost says what a failed second packet means. Only the errors that a server
// gives before a commit are known to have kept nothing; anything else is
// looked up.
func (t *tx) lost(err error) error {
	if mysqlconn.IsDeadlock(err) || mysqlconn.IsLockTimeout(err) {
		return fmt.Errorf("%w: %w", errRedo, err)
	}
	return fmt.Errorf("%w: %w", errMaybe, err)
}

const begin = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; "

// takeNumbers returns the statements that raise last_added_id by n, leave
// shard_log's row locked, and set @l to the number before and @t to the time.
// With a stale route, or on a server that is no master, @l stays NULL.
func (t *tx) takeNumbers(n int) string {
	num, where := strconv.Itoa(n), t.isOpen()
	terms := ""
	if t.batch.wantSafe {
		terms = lockTerms
	}
	if t.s.unlocked { // for the test that must fail: numbers without a lock
		return "SET @l = NULL; UPDATE " + t.db + ".shard_log SET last_added_id = LAST_INSERT_ID(last_added_id + " + num + ")" + where +
			"; SELECT LAST_INSERT_ID() - " + num + ", NOW(6), 0 INTO @l, @t, @s; START TRANSACTION; " + terms
	}
	start := ""
	if !t.begun {
		t.begun = true
		start = begin
	}
	return start + "SET @l = NULL; UPDATE " + t.db + ".shard_log SET last_added_id = last_added_id + " + num +
		", last_created_at = GREATEST(last_created_at, NOW(6))" + where +
		"; SELECT last_added_id - " + num + ", last_created_at, term INTO @l, @t, @s FROM " + t.db + ".shard_log" + where + " AND NOT " + mysqlconn.ReadOnly + t.guard + "; " + terms
}

// insert sends one packet: first, the rows, the commit. One that fails ends it
// there: without numbers or with a duplicate it never comes to the commit.
func (t *tx) insert(ctx context.Context, first string, groups []*group) (taken, error) {
	size := len(first) + 256
	for _, g := range groups {
		size += 128 + len(g.key.Column)
	}
	sb := make([]byte, 0, size)
	sb = append(sb, first...)
	sb, args := t.appendInsert(sb, make([]any, 0, 3*len(groups)), "", groups)
	sb = append(sb, "; COMMIT; SELECT @l, CAST(@t AS DATETIME(6)), @s"...)
	if t.batch.wantSafe {
		sb = append(sb, ", @h"...)
	} else {
		sb = append(sb, ", NULL"...)
	}
	rows, err := t.conn.QueryContext(ctx, string(sb), args...)
	if err != nil {
		return taken{}, err
	}
	var at taken
	var term cellog.Term
	var holders sql.NullString
	err = each(rows, func() error { return rows.Scan(&at.before, &at.createdAt, &term, &holders) })
	if err == nil && at.createdAt.IsZero() {
		err = errors.New("the server did not tell the numbers")
	}
	if err == nil && t.batch.wantSafe {
		at.known, err = parseKnown(t.route.Epoch, term, holders)
	}
	return at, err
}

// appendInsert appends the statement that stores the groups' first members with
// the numbers after @l and the time @t, both with num behind their names.
func (t *tx) appendInsert(sb []byte, args []any, num string, groups []*group) ([]byte, []any) {
	sb = append(sb, "INSERT INTO "...)
	sb = append(sb, t.db...)
	sb = append(sb, ".entity (added_id, epoch, row_key, column_name, ref_key, body, created_at, traceparent) VALUES "...)
	epoch := "," + strconv.Itoa(int(t.route.Epoch)) + ",x'"
	for i, g := range groups {
		p := &t.batch.puts[g.members[0]]
		if i > 0 {
			sb = append(sb, ',')
		}
		sb = append(sb, "(@l"+num+"+"...)
		sb = strconv.AppendInt(sb, int64(i+1), 10)
		sb = append(sb, epoch...)
		sb = hex.AppendEncode(sb, p.Row[:])
		sb = append(sb, "',?,"...)
		sb = strconv.AppendInt(sb, int64(p.Ref), 10)
		sb = append(sb, ",?,@t"+num+","...)
		args = append(args, p.Column, p.Body)
		if p.TraceParent == "" {
			sb = append(sb, "NULL)"...)
		} else {
			sb = append(sb, "?)"...)
			args = append(args, p.TraceParent)
		}
	}
	return sb, args
}

// isOpen is the condition that the shard's shard_log is of the route.
func (t *tx) isOpen() string {
	return " WHERE id = 1 AND epoch = " + strconv.Itoa(int(t.route.Epoch)) + " AND state = 'open'"
}

// withoutDuplicates looks the keys up under the lock, answers those that are
// taken and returns the others.
func (t *tx) withoutDuplicates(ctx context.Context, groups []*group) ([]*group, error) {
	t.s.metrics.duplicateLooks.Inc()
	k, err := t.known(ctx)
	if err == nil {
		err = t.lookUp(ctx, groups, func(g *group, c *cellog.Cell) { t.batch.stands(g, c, k) })
	}
	if err != nil {
		return nil, fmt.Errorf("%w: look up duplicates: %w", errRedo, err)
	}
	left := groups[:0:0]
	for _, g := range groups {
		if !g.decided {
			left = append(left, g)
		}
	}
	if len(left) == len(groups) {
		return nil, fmt.Errorf("%v: an added_id above shard_log's last_added_id is in entity: %w", t.route, storage.ErrDamaged)
	}
	return left, nil
}

// known asks, while the shard's lock is held, what the primary knows; nil if
// the batch does not want it.
func (t *tx) known(ctx context.Context) (*known, error) {
	if !t.batch.wantSafe {
		return nil, nil
	}
	rows, err := t.conn.QueryContext(ctx, lockTerms+"SELECT term, @h FROM "+t.db+".shard_log WHERE id = 1")
	if err != nil {
		return nil, err
	}
	var term cellog.Term
	var holders sql.NullString
	if err := each(rows, func() error { return rows.Scan(&term, &holders) }); err != nil {
		return nil, err
	}
	return parseKnown(t.route.Epoch, term, holders)
}

// close gives the connection back. A transaction that did not commit is rolled
// back; a connection that cannot even do that is dropped, which ends it too.
func (t *tx) close() {
	if t.begun && !t.committed {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := t.conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			drop(t.conn)
			return
		}
	}
	_ = t.conn.Close() // returns it to the pool; a broken one is dropped there
}

// drop closes a connection for good.
func drop(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close() // already closed by Raw: ErrConnDone
}
