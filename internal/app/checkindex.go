package app

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/indexer/table"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/verify"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage/mysql"
)

// indexChecker compares all indexes that the servers know of a datastore.
type indexChecker struct {
	cfg       *config.Config
	datastore string
	store     *mysql.Store
	config    verify.Config
}

func (x *indexChecker) check(ctx context.Context, upTo []cellog.AddedID) (_ []verify.Index, err error) {
	places, err := newPlaces(x.cfg, AdminAccount, x.store)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, places.close()) }()
	indexes, err := x.indexes(ctx, places)
	if err != nil || len(indexes) == 0 {
		return nil, err
	}
	tables, err := table.New(table.Config{Places: places})
	if err != nil {
		return nil, err
	}
	var out []verify.Index
	for _, ix := range indexes {
		r, err := indexer.Verify(ctx, indexer.VerifyConfig{
			Index: ix, Tables: tables, Wait: x.config.Wait, Detail: x.config.Detail,
			UpTo: func(shard cellog.ShardID) cellog.AddedID { return upTo[shard] },
			Cells: func(ctx context.Context, shard cellog.ShardID) iter.Seq2[cellog.Cell, error] {
				return x.cells(ctx, shard, upTo[shard])
			},
		})
		if err != nil {
			return nil, err
		}
		out = append(out, verify.Index{Name: ix.Name(), Entries: r.Entries, Missing: r.Missing, Stale: r.Stale, Extra: r.Extra})
	}
	return out, nil
}

// indexes reads the definitions that a server keeps; all servers keep all.
func (x *indexChecker) indexes(ctx context.Context, p *places) (_ []*indexer.Index, err error) {
	db, _, err := p.ShardDB(ctx, x.datastore, 0)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT definition FROM cellog_meta.index_states WHERE datastore = ? ORDER BY index_name", x.datastore)
	if mysqlconn.IsMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var out []*indexer.Index
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, err
		}
		ix, err := indexer.Described(line)
		if err != nil {
			return nil, fmt.Errorf("cellog_meta.index_states: %w", err)
		}
		out = append(out, ix)
	}
	return out, rows.Err()
}

// cells yields a shard's cells up to an added_id, with bodies as JSON.
func (x *indexChecker) cells(ctx context.Context, shard cellog.ShardID, upTo cellog.AddedID) iter.Seq2[cellog.Cell, error] {
	return func(yield func(cellog.Cell, error) bool) {
		for after := cellog.AddedID(0); after < upTo; {
			page, err := tables{x.store}.Read(ctx, x.datastore, shard, after, upTo, verify.DefaultPage)
			if err != nil {
				yield(cellog.Cell{}, err)
				return
			}
			if len(page) == 0 {
				return
			}
			for i := range page {
				c := &page[i]
				after = c.AddedID
				if c.Body == nil {
					if !yield(*c, nil) {
						return
					}
					continue
				}
				if c.Body, err = body.AppendJSON(nil, c.Body, 0); err != nil {
					yield(cellog.Cell{}, fmt.Errorf("cell %s: %w", c.ID(), err))
					return
				}
				if !yield(*c, nil) {
					return
				}
			}
		}
	}
}
