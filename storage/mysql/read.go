package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
)

// PageBytes bounds the stored bodies of one page of a list: a page ends early
// once it holds so many bytes, but has at least one cell.
const PageBytes = 16 << 20

const cellFields = "added_id, epoch, row_key, column_name, ref_key, body, created_at, traceparent"

// scanCell reads the fields of a cell without its traceparent, or with it if
// the row has it. Body is in stored form and is a copy.
func scanCell(rows *sql.Rows, more ...any) (cellog.Cell, error) {
	var c cellog.Cell
	var row []byte
	dest := append([]any{&c.AddedID, &c.Epoch, &row, &c.Column, &c.Ref, &c.Body, &c.CreatedAt}, more...)
	if err := rows.Scan(dest...); err != nil {
		return c, err
	}
	if len(row) != len(c.Row) {
		return c, fmt.Errorf("added_id %d: row_key of %d bytes: %w", c.AddedID, len(row), storage.ErrDamaged)
	}
	copy(c.Row[:], row)
	c.CreatedAt = c.CreatedAt.UTC()
	if err := body.Check(c.Body); err != nil {
		return c, fmt.Errorf("cell %s, added_id %d: %w (%w)", c.Key, c.AddedID, storage.ErrDamaged, err)
	}
	return c, nil
}

// querier is a pool, one connection or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// cells runs a query of cellFields whose LIMIT is limit+1. It stops after limit
// cells or PageBytes; more says that there were further ones.
func cells(ctx context.Context, db querier, datastore string, shard cellog.ShardID, limit int, query string, args ...any) (out []cellog.Cell, more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, false, err
	}
	size := 0
	err = each(rows, func() error {
		if more = len(out) == limit || size > PageBytes; more {
			if len(out) < limit {
				cancel() // or closing rows would read megabytes that nobody wants
			}
			return errEnough
		}
		var trace sql.NullString
		c, err := scanCell(rows, &trace)
		if err != nil {
			return err
		}
		c.Datastore, c.Shard, c.TraceParent = datastore, shard, trace.String
		size += len(c.Body)
		out = append(out, c)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, more, err
}

var errEnough = errors.New("page is full")

// readTimeout bounds a read of one server where another one can answer too. It
// is long enough for a full page from a busy disk.
const readTimeout = 3 * time.Second

// reading runs f on a node of the shard's cluster. A master out of reach is
// replaced by a minion, which the origin then says.
func (s *Store) reading(ctx context.Context, datastore string, shard cellog.ShardID, from cellog.ReadFrom, f func(ctx context.Context, db *sql.DB, name string) error) (cellog.Origin, error) {
	var candidates []*node
	master := ""
	route, gone, err := s.routeNow(ctx, datastore, shard)
	switch {
	case err == nil:
		master = route.Cluster + "/" + route.Node
		candidates = s.candidates(route, from)
	case errors.Is(err, storage.ErrUnavailable):
		placed, known := s.placedOn(datastore, shard)
		for _, c := range s.clusters { // no master: any server that has it
			if !known || c.name == placed {
				candidates = append(candidates, c.nodes...)
			}
		}
	default:
		return cellog.Origin{}, err
	}
	var errs []error
	for i, n := range candidates {
		if !n.breaker.Allow() {
			continue
		}
		err := func() error {
			if i == len(candidates)-1 {
				return f(ctx, n.read, quote(datastore, shard))
			}
			// One that takes connections and gives no answers must not use up
			// the time of those that could.
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			return f(ctx, n.read, quote(datastore, shard))
		}()
		if unreachable(ctx, err) {
			n.breaker.Failure()
			errs = append(errs, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err))
			continue
		}
		n.breaker.Success()
		if mysqlconn.IsMissing(err) || errors.Is(err, errNotFinal) {
			errs = append(errs, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err))
			continue
		}
		o := cellog.Origin{Node: n.cluster + "/" + n.Name, Stale: gone && from == cellog.Master}
		if o.Node != master {
			o.From = cellog.Minion
			o.Stale = from == cellog.Master
			o.Lag = n.lag(ctx)
		} else if from == cellog.Master {
			// The server is asked first, and the look must hold when it has answered.
			o.Stale = s.strayed(ctx, n, route) || !s.vouched(n) || o.Stale
		}
		return o, err
	}
	if err := ctx.Err(); err != nil {
		errs = append(errs, err)
	}
	return cellog.Origin{}, fmt.Errorf("datastore %q, shard %d: no server answered: %w (%w)", datastore, shard, storage.ErrUnavailable, errors.Join(errs...))
}

// routeLook bounds the look for a shard that has gone elsewhere.
const routeLook = 500 * time.Millisecond

// routeNow returns a shard's route. Where Kafka knows of a newer epoch, the shard
// was moved, or its master was replaced: then the servers are asked first, and
// gone says that the route is an old one still.
func (s *Store) routeNow(ctx context.Context, datastore string, shard cellog.ShardID) (route storage.Route, gone bool, err error) {
	route, err = s.routes.Route(datastore, shard)
	m, known := s.cfg.Marks.Mark(datastore, shard)
	if err != nil || !known || m.Epoch <= route.Epoch {
		return route, false, err
	}
	look, cancel := context.WithTimeout(ctx, routeLook)
	s.lookFor(look, datastore, shard)
	cancel()
	route, err = s.routes.Route(datastore, shard)
	return route, m.Epoch > route.Epoch, err
}

// strayed says that a shard which moves may have moved on from a node that has
// just answered. That the shard is open there still tells that it has not.
func (s *Store) strayed(ctx context.Context, n *node, route storage.Route) bool {
	if m, known := s.cfg.Marks.Mark(route.Datastore, route.Shard); !known || !m.Moves {
		return false
	}
	h, ok, err := Head(ctx, n.read, route.Datastore, route.Shard)
	if err == nil && ok && h.Open() && h.Epoch == route.Epoch {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, routeLook)
	defer cancel()
	s.lookFor(ctx, route.Datastore, route.Shard) // for the next one
	return true
}

// vouched says whether a node was its cluster's master when it has just answered.
// One that was replaced and does not know answers on: only a fresh look at the
// terms tells.
func (s *Store) vouched(n *node) bool {
	if s.cfg.Masters == nil {
		return true
	}
	now, o := s.cfg.Now(), s.cfg.Masters(n.cluster)
	return o.Node == n.Name && now.Sub(o.Looked) <= storage.LookFor
}

// candidates returns the cluster's nodes in the order in which to ask them.
func (s *Store) candidates(route storage.Route, from cellog.ReadFrom) []*node {
	var masters, minions []*node
	for _, n := range s.byName[route.Cluster].nodes {
		if n.Name == route.Node {
			masters = append(masters, n)
		} else {
			minions = append(minions, n)
		}
	}
	if from == cellog.Minion {
		return append(minions, masters...)
	}
	return append(masters, minions...)
}

// unreachable tells a node that gave no answer from a statement's error, and
// from a caller whose own time was up.
func unreachable(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && (mysqlconn.IsLost(err) || errors.Is(err, context.DeadlineExceeded))
}

// Newest returns the cell with the highest ref_key of a row's column, its Body
// in stored form, or storage.ErrNotFound.
func (s *Store) Newest(ctx context.Context, datastore string, row uuid.UUID, column string, from cellog.ReadFrom) (cellog.Cell, cellog.Origin, error) {
	return s.one(ctx, datastore, row, from, "WHERE row_key = ? AND column_name = ? ORDER BY ref_key DESC", row[:], column)
}

// Version returns one cell, its Body in stored form, or storage.ErrNotFound.
func (s *Store) Version(ctx context.Context, datastore string, key cellog.Key, from cellog.ReadFrom) (cellog.Cell, cellog.Origin, error) {
	return s.one(ctx, datastore, key.Row, from, "WHERE row_key = ? AND column_name = ? AND ref_key = ?", key.Row[:], key.Column, int64(key.Ref))
}

func (s *Store) one(ctx context.Context, datastore string, row uuid.UUID, from cellog.ReadFrom, where string, args ...any) (cellog.Cell, cellog.Origin, error) {
	list, _, o, err := s.list(ctx, datastore, row, from, 1, where, args...)
	if err != nil {
		return cellog.Cell{}, o, err
	}
	if len(list) == 0 {
		return cellog.Cell{}, o, storage.ErrNotFound
	}
	return list[0], o, nil
}

func (s *Store) list(ctx context.Context, datastore string, row uuid.UUID, from cellog.ReadFrom, limit int, where string, args ...any) (out []cellog.Cell, more bool, o cellog.Origin, err error) {
	n, err := s.Shards(datastore)
	if err != nil {
		return nil, false, o, err
	}
	shard := cellog.ShardOf(row, n)
	o, err = s.reading(ctx, datastore, shard, from, func(ctx context.Context, db *sql.DB, name string) error {
		out, more, err = cells(ctx, db, datastore, shard, limit, "SELECT "+cellFields+" FROM "+name+".entity "+where+" LIMIT "+strconv.Itoa(limit+1), args...)
		return err
	})
	return out, more, o, err
}

// Row returns the newest cell of each column of a row whose name is after the
// given one, by name. more says that there are further columns.
func (s *Store) Row(ctx context.Context, datastore string, row uuid.UUID, after string, limit int, from cellog.ReadFrom) (out []cellog.Cell, more bool, o cellog.Origin, err error) {
	n, err := s.Shards(datastore)
	if err != nil {
		return nil, false, o, err
	}
	shard := cellog.ShardOf(row, n)
	o, err = s.reading(ctx, datastore, shard, from, func(ctx context.Context, db *sql.DB, name string) error {
		q := "SELECT " + cellFields + " FROM " + name + ".entity JOIN (SELECT column_name AS c, MAX(ref_key) AS r FROM " + name +
			".entity WHERE row_key = ? AND column_name > ? GROUP BY column_name) AS newest ON column_name = c AND ref_key = r WHERE row_key = ? ORDER BY column_name LIMIT " + strconv.Itoa(limit+1)
		out, more, err = cells(ctx, db, datastore, shard, limit, q, row[:], after, row[:])
		return err
	})
	return out, more, o, err
}

// Versions returns all cells of a row from (column, ref) on, included, ordered
// by column name, then ref_key.
func (s *Store) Versions(ctx context.Context, datastore string, start cellog.Key, limit int, from cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error) {
	return s.list(ctx, datastore, start.Row, from, limit,
		"WHERE row_key = ? AND (column_name > ? OR column_name = ? AND ref_key >= ?) ORDER BY column_name, ref_key",
		start.Row[:], start.Column, start.Column, int64(start.Ref))
}

// History returns the cells of a row's column from a ref_key on, included,
// ordered by ref_key.
func (s *Store) History(ctx context.Context, datastore string, start cellog.Key, limit int, from cellog.ReadFrom) ([]cellog.Cell, bool, cellog.Origin, error) {
	return s.list(ctx, datastore, start.Row, from, limit, "WHERE row_key = ? AND column_name = ? AND ref_key >= ? ORDER BY ref_key",
		start.Row[:], start.Column, int64(start.Ref))
}

const (
	// getsPerLook bounds the gets of one statement.
	getsPerLook = 100
	// looksAtOnce bounds the statements of one Get that run side by side.
	looksAtOnce = 8
)

// Get returns many cells, Body in stored form, asking each shard once per 100
// of them, several shards at a time. errs[i] is nil where get i has a cell.
// Once the answer holds maxBytes of stored bodies, what is left has errs[i] set
// to storage.ErrTooMuch, whether there is such a cell or not.
func (s *Store) Get(ctx context.Context, datastore string, gets []cellog.Get, maxBytes int, from cellog.ReadFrom) (out []cellog.Cell, errs []error, o cellog.Origin, err error) {
	n, err := s.Shards(datastore)
	if err != nil {
		return nil, nil, o, err
	}
	out, errs = make([]cellog.Cell, len(gets)), make([]error, len(gets))
	byShard := map[cellog.ShardID][]int{}
	var order []cellog.ShardID
	for i, g := range gets {
		shard := cellog.ShardOf(g.Row, n)
		if byShard[shard] == nil {
			order = append(order, shard)
		}
		byShard[shard] = append(byShard[shard], i)
	}
	var left atomic.Int64
	left.Store(int64(maxBytes))
	var mu sync.Mutex // guards o
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(looksAtOnce)
	for _, shard := range order {
		for part := byShard[shard]; len(part) > 0; {
			now := part[:min(len(part), getsPerLook)]
			part = part[len(now):]
			g.Go(func() error {
				po, err := s.getPart(ctx, datastore, shard, gets, now, out, errs, &left, from)
				if err == nil && po.Node != "" {
					mu.Lock()
					defer mu.Unlock()
					o = worse(o, po)
				}
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, nil, o, err
	}
	return out, errs, o, nil
}

// worse joins the origins of the parts of one answer: it is as stale as its
// stalest part.
func worse(a, b cellog.Origin) cellog.Origin {
	switch {
	case a.Node == "":
		return b
	case a.Node == b.Node:
	default:
		a.Node += "," + b.Node
		if strings.Contains(","+strings.TrimSuffix(a.Node, ","+b.Node)+",", ","+b.Node+",") {
			a.Node = strings.TrimSuffix(a.Node, ","+b.Node)
		}
	}
	a.Stale = a.Stale || b.Stale
	a.From = max(a.From, b.From)
	if a.Lag == cellog.UnknownLag || b.Lag == cellog.UnknownLag {
		a.Lag = cellog.UnknownLag
	} else {
		a.Lag = max(a.Lag, b.Lag)
	}
	return a
}

// getPart gets some of the cells of one shard, as far as left allows: the cell
// that exhausts it is the last one.
func (s *Store) getPart(ctx context.Context, datastore string, shard cellog.ShardID, gets []cellog.Get, part []int, out []cellog.Cell, errs []error, left *atomic.Int64, from cellog.ReadFrom) (cellog.Origin, error) {
	if left.Load() <= 0 {
		for _, i := range part {
			errs[i] = storage.ErrTooMuch
		}
		return cellog.Origin{}, nil
	}
	return s.reading(ctx, datastore, shard, from, func(ctx context.Context, db *sql.DB, name string) error {
		var sb strings.Builder
		args := make([]any, 0, 4*len(part))
		for k, i := range part {
			if k > 0 {
				sb.WriteString(" UNION ALL ")
			}
			g := gets[i]
			sb.WriteString("(SELECT " + cellFields + ", ? AS i FROM " + name + ".entity WHERE row_key = ? AND column_name = ?")
			args = append(args, i, g.Row[:], g.Column)
			if g.Newest {
				sb.WriteString(" ORDER BY ref_key DESC LIMIT 1)")
			} else {
				sb.WriteString(" AND ref_key = ?)")
				args = append(args, int64(g.Ref))
			}
		}
		for _, i := range part {
			errs[i] = storage.ErrNotFound
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		rows, err := db.QueryContext(ctx, sb.String(), args...)
		if err != nil {
			return err
		}
		used := 0
		err = each(rows, func() error {
			if left.Load() <= 0 {
				cancel() // or closing rows would read megabytes that nobody wants
				return errEnough
			}
			var i int
			var trace sql.NullString
			c, err := scanCell(rows, &trace, &i)
			if err != nil {
				return err
			}
			c.Datastore, c.Shard, c.TraceParent = datastore, shard, trace.String
			used += len(c.Body)
			left.Add(-int64(len(c.Body)))
			out[i], errs[i] = c, nil
			return nil
		})
		if errors.Is(err, errEnough) {
			for _, i := range part {
				if errs[i] != nil {
					errs[i] = storage.ErrTooMuch // it was not looked at
				}
			}
			err = nil
		}
		if err != nil {
			left.Add(int64(used)) // another node is asked, or nobody
		}
		return err
	})
}
