package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
)

// section is one shard's part of a joint transaction.
type section struct {
	batch  *batch
	groups []*group
	tx     *tx // its shard's names
}

// join writes the passengers' batches in one transaction: all of it, or none.
// Those that it cannot decide stay as they are; with errMaybe as their err if
// the transaction may be there.
func (s *Store) join(ctx context.Context, n *node, passengers []*passenger) {
	var sections []section
	var joined []*passenger
	guard := n.mayWrite()
	for _, p := range passengers {
		t := &tx{s: s, route: p.route, db: quote(p.route.Datastore, p.route.Shard), batch: p.batch, guard: guard, columns: &s.byName[p.route.Cluster].columns}
		if groups := p.batch.open(); len(groups) > 0 && len(t.unknown()) == 0 {
			sections = append(sections, section{p.batch, groups, t})
			joined = append(joined, p)
		}
	}
	if len(sections) < 2 || !n.breaker.Allow() {
		return
	}
	// In the order of the shards, so that two workers never wait for each
	// other in turn.
	slices.SortStableFunc(sections, func(a, b section) int { return strings.Compare(a.tx.db, b.tx.db) })
	ctx, cancel := context.WithTimeout(ctx, s.cfg.TransactionTimeout)
	defer cancel()
	conn, err := n.write.Conn(ctx)
	if err != nil {
		n.breaker.Failure()
		return
	}
	n.breaker.Success()
	lead := &tx{conn: conn, begun: true}
	defer lead.close()
	end := func(err error) {
		for _, p := range joined {
			p.err = err
		}
	}
	end(errMaybe) // until it is known
	at, err := insertSections(ctx, conn, sections)
	if err == nil {
		end(nil)
		lead.committed = true
		for i, sec := range sections {
			sec.tx.answer(sec.groups, at[i])
		}
		n.line.joined(true)
		s.metrics.jointShards.Observe(float64(len(sections)))
		return
	}
	if ctx.Err() != nil {
		n.breaker.Failure() // as in attempt
	}
	n.line.joined(false)
	s.metrics.splits.Inc()
	if code := mysqlconn.Code(err); code == errBadNull || mysqlconn.IsDuplicate(err) || mysqlconn.IsDeadlock(err) || mysqlconn.IsLockTimeout(err) {
		end(nil) // the server says so before it commits: nothing was kept
		return
	}
	end(fmt.Errorf("%w: %w", errMaybe, err))
}

// insertSections sends one packet with all sections and the commit.
func insertSections(ctx context.Context, conn *sql.Conn, sections []section) ([]taken, error) {
	size, cells := 256, 0
	for i := range sections {
		size += 600
		cells += len(sections[i].groups)
		for _, g := range sections[i].groups {
			size += 128 + len(g.key.Column)
		}
	}
	sb := append(make([]byte, 0, size), begin+"SET "...)
	args := make([]any, 0, 3*cells)
	for i := range sections {
		if i > 0 {
			sb = append(sb, ", "...)
		}
		sb = append(sb, "@l"+strconv.Itoa(i)+" = NULL"...)
	}
	sb = append(sb, "; "...)
	wantSafe := slices.ContainsFunc(sections, func(s section) bool { return s.batch.wantSafe })
	if wantSafe {
		sb = append(sb, lockTerms...)
	}
	for i := range sections {
		sec := &sections[i]
		num := strconv.Itoa(i)
		// No waiting: whoever holds a shard must not hold up the others.
		sb = append(sb, "SELECT last_added_id, GREATEST(last_created_at, NOW(6)), term INTO @l"+num+", @t"+num+", @s"+num+" FROM "+sec.tx.db+".shard_log"+sec.tx.isOpen()+
			" AND NOT "+mysqlconn.ReadOnly+sec.tx.guard+" FOR UPDATE NOWAIT; UPDATE "+sec.tx.db+".shard_log SET last_added_id = @l"+num+" + "+strconv.Itoa(len(sec.groups))+
			", last_created_at = @t"+num+" WHERE id = 1; "...)
		sb, args = sec.tx.appendInsert(sb, args, num, sec.groups)
		sb = append(sb, "; "...)
	}
	sb = append(sb, "COMMIT; SELECT "...)
	for i := range sections {
		if i > 0 {
			sb = append(sb, ", "...)
		}
		num := strconv.Itoa(i)
		sb = append(sb, "@l"+num+", CAST(@t"+num+" AS DATETIME(6)), @s"+num...)
	}
	if wantSafe {
		sb = append(sb, ", @h"...)
	} else {
		sb = append(sb, ", NULL"...)
	}
	rows, err := conn.QueryContext(ctx, string(sb), args...)
	if err != nil {
		return nil, err
	}
	before, created := make([]sql.NullInt64, len(sections)), make([]sql.NullTime, len(sections))
	terms := make([]cellog.Term, len(sections))
	var holders sql.NullString
	dest := make([]any, 0, 3*len(sections)+1)
	for i := range sections {
		dest = append(dest, &before[i], &created[i], &terms[i])
	}
	dest = append(dest, &holders)
	if err := each(rows, func() error { return rows.Scan(dest...) }); err != nil {
		return nil, err
	}
	at := make([]taken, len(sections))
	for i := range at {
		if !before[i].Valid || !created[i].Valid {
			return nil, errors.New("the server did not tell the numbers")
		}
		at[i] = taken{before: cellog.AddedID(before[i].Int64), createdAt: created[i].Time.In(time.UTC)}
		if wantSafe {
			if at[i].known, err = parseKnown(sections[i].tx.route.Epoch, terms[i], holders); err != nil {
				return nil, err
			}
		}
	}
	return at, nil
}
