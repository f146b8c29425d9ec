package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/storage"
)

// RejectedPlace is a place in the list of rejected cells: behind record ID of
// cluster number Cluster. The zero value is the beginning.
type RejectedPlace struct {
	Cluster int
	ID      int64
}

// String returns what ParseRejectedPlace reads.
func (p RejectedPlace) String() string {
	return strconv.Itoa(p.Cluster) + ":" + strconv.FormatInt(p.ID, 10)
}

// ParseRejectedPlace reads a place; false if it is none.
func ParseRejectedPlace(s string) (RejectedPlace, bool) {
	c, id, _ := strings.Cut(s, ":")
	n, err := strconv.Atoi(c)
	i, ierr := strconv.ParseInt(id, 10, 64)
	return RejectedPlace{n, i}, err == nil && ierr == nil && n >= 0 && i >= 0
}

// anyNode runs fn on a server of a cluster: the master if it answers, else
// another one.
func (c *cluster) anyNode(ctx context.Context, fn func(context.Context, *node) error) error {
	var errs []error
	for _, master := range []bool{true, false} {
		for _, n := range c.nodes {
			if n.isWritable() != master || !n.breaker.Allow() {
				continue
			}
			actx, cancel := context.WithTimeout(ctx, askTimeout)
			err := fn(actx, n)
			cancel()
			away := unreachable(ctx, err)
			if away {
				n.breaker.Failure()
			} else {
				n.breaker.Success()
			}
			if away || mysqlconn.IsMissing(err) {
				errs = append(errs, fmt.Errorf("node %s/%s: %w", n.cluster, n.Name, err))
				continue
			}
			return err
		}
	}
	return fmt.Errorf("cluster %q: no server answered: %w (%w)", c.name, storage.ErrUnavailable, errors.Join(errs...))
}

// Rejected pages through the rejected cells of a datastore, cluster by cluster,
// in the order in which each rejected them. next is the place behind the page;
// more says that there are further ones. The error is set when a cluster cannot
// be asked.
func (s *Store) Rejected(ctx context.Context, datastore, after string, limit int) (out []cellog.RejectedCell, next string, more bool, err error) {
	if _, err := s.Shards(datastore); err != nil {
		return nil, "", false, err
	}
	var p RejectedPlace
	if after != "" {
		var ok bool
		if p, ok = ParseRejectedPlace(after); !ok {
			return nil, "", false, storage.ErrBadPlace
		}
	}
	size := 0
	for ; p.Cluster < len(s.clusters); p = (RejectedPlace{Cluster: p.Cluster + 1}) {
		c := s.clusters[p.Cluster]
		before, sizeBefore := len(out), size
		err := c.anyNode(ctx, func(ctx context.Context, n *node) error {
			out, size = out[:before], sizeBefore // what a node gave that then failed
			rows, err := n.read.QueryContext(ctx, "SELECT id, shard, row_key, column_name, ref_key, body, reason, COALESCE(winner_epoch, 0), "+
				"COALESCE(winner_added_id, 0), winner_body, rejected_at FROM cellog_buffer.rejected_cells WHERE datastore = ? AND id > ? ORDER BY id LIMIT ?",
				datastore, p.ID, limit-len(out)+1)
			if err != nil {
				return err
			}
			return each(rows, func() error {
				if more = len(out) == limit || size > PageBytes; more {
					return errEnough
				}
				r := cellog.RejectedCell{Cluster: c.name}
				var row []byte
				if err := rows.Scan(&r.ID, &r.Shard, &row, &r.Column, &r.Ref, &r.Body, &r.Reason, &r.WinnerEpoch, &r.WinnerAddedID, &r.WinnerBody, &r.RejectedAt); err != nil {
					return err
				}
				copy(r.Row[:], row)
				r.RejectedAt = r.RejectedAt.UTC()
				size += len(r.Body) + len(r.WinnerBody)
				out = append(out, r)
				return nil
			})
		})
		if err != nil && !errors.Is(err, errEnough) {
			return nil, "", false, err
		}
		if len(out) > before {
			p.ID = out[len(out)-1].ID
		}
		if more {
			return out, p.String(), true, nil
		}
	}
	return out, p.String(), false, nil
}

// Buffered says which shards' cells wait for their primary, and on which
// servers. The error is set when a cluster cannot be asked.
func (s *Store) Buffered(ctx context.Context, datastore string) ([]cellog.BufferedCells, error) {
	if _, err := s.Shards(datastore); err != nil {
		return nil, err
	}
	var out []cellog.BufferedCells
	for _, c := range s.clusters {
		before := len(out)
		err := c.anyNode(ctx, func(ctx context.Context, n *node) error {
			out = out[:before]
			rows, err := n.read.QueryContext(ctx, "SELECT shard, COUNT(*), MIN(buffered_at) FROM cellog_buffer.buffered_cells WHERE datastore = ? GROUP BY shard ORDER BY shard", datastore)
			if err != nil {
				return err
			}
			return each(rows, func() error {
				b := cellog.BufferedCells{Node: n.cluster + "/" + n.Name}
				var oldest sql.NullTime
				if err := rows.Scan(&b.Shard, &b.Cells, &oldest); err != nil {
					return err
				}
				b.Oldest = oldest.Time.UTC()
				out = append(out, b)
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
