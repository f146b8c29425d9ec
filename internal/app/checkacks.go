package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/acks"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/storage"
	"github.com/cellog/cellog/storage/mysql"
)

// CheckAcks holds a journal of answers (internal/acks) against what a datastore
// has. detail, if not nil, is told each fault.
func CheckAcks(ctx context.Context, cfg *config.Config, env Env, datastore, file string, detail func(string)) (out acks.Report, err error) {
	err = withStore(ctx, cfg, env, func(s *mysql.Store) error {
		if _, err := s.Datastore(datastore); err != nil {
			return err
		}
		out, err = acks.Check(ctx, file, answers{s, datastore}, detail)
		return err
	})
	return out, err
}

// answers reads what stands, on the masters.
type answers struct {
	store     *mysql.Store
	datastore string
}

// Standing returns the bodies that stand.
func (a answers) Standing(ctx context.Context, keys []cellog.Key) ([][]byte, error) {
	out := make([][]byte, len(keys))
	gets := make([]cellog.Get, len(keys))
	for i, k := range keys {
		gets[i] = cellog.Get{Key: k}
	}
	cells, errs, o, err := a.store.Get(ctx, a.datastore, gets, mysql.PageBytes, cellog.Master)
	if err != nil {
		return nil, err
	}
	if o.Stale {
		return nil, fmt.Errorf("a master does not answer, node %s may be behind", o.Node)
	}
	for i := range gets {
		switch {
		case errs[i] == nil:
			out[i] = cells[i].Body
		case errors.Is(errs[i], storage.ErrNotFound):
		case errors.Is(errs[i], storage.ErrTooMuch):
			one, o, err := a.store.Version(ctx, a.datastore, keys[i], cellog.Master)
			switch {
			case errors.Is(err, storage.ErrNotFound):
			case err != nil:
				return nil, err
			case o.Stale:
				return nil, fmt.Errorf("a master does not answer, node %s may be behind", o.Node)
			default:
				out[i] = one.Body
			}
		default:
			return nil, errs[i]
		}
	}
	return out, nil
}

// Buffered says whether a copy of the key's cell waits.
func (a answers) Buffered(ctx context.Context, key cellog.Key) (bool, error) {
	s, err := a.store.State(ctx, a.datastore, key)
	return s.State == cellog.StateBuffered, err
}

// Rejected goes through all rejected cells.
func (a answers) Rejected(ctx context.Context, fn func(key cellog.Key, stored, winner []byte)) error {
	for after, more := "", true; more; {
		var page []cellog.RejectedCell
		var err error
		if page, after, more, err = a.store.Rejected(ctx, a.datastore, after, 1000); err != nil {
			return err
		}
		for i := range page {
			fn(page[i].Key, page[i].Body, page[i].WinnerBody)
		}
	}
	return nil
}
