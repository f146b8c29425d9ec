package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/position"
)

// The defaults of Config.
const (
	DefaultWait     = 30 * time.Second
	DefaultParallel = 4
	DefaultPage     = 500
)

// Entities reads the entity tables. Methods are called concurrently.
type Entities interface {
	// Last returns the last added_id of a shard, by its shard_log.
	Last(ctx context.Context, datastore string, shard cellog.ShardID) (cellog.AddedID, error)
	// Read returns cells with after < added_id <= upTo in order, at most limit
	// of them, with bodies in stored form. None means that there are none. A
	// cell that is damaged comes with Shard and AddedID alone: its Body is nil.
	Read(ctx context.Context, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID, limit int) ([]cellog.Cell, error)
}

// Index is the result of comparing one index with the cells.
type Index struct {
	Name    string `json:"name"`
	Entries int64  `json:"entries"`
	// Missing entries are not there, Stale ones hold old values, and Extra
	// ones belong to no cell.
	Missing int64 `json:"missing"`
	Stale   int64 `json:"stale"`
	Extra   int64 `json:"extra"`
}

// Report is what was compared and what was found. Its JSON is part of the
// command's contract.
type Report struct {
	Shards int `json:"shards"`
	// Cells are the rows of the entity tables, Records the records of the
	// column topics that were compared.
	Cells   int64 `json:"cells"`
	Records int64 `json:"records"`
	// Missing cells are not in Kafka, or records are not in the entity table.
	Missing int64 `json:"missing"`
	// Duplicates are further records of a cell.
	Duplicates int64 `json:"duplicates"`
	// OutOfOrder records came behind a later cell of their shard and column.
	OutOfOrder int64 `json:"out_of_order"`
	// Holes are numbers missing from a shard's log, cells above its last
	// number, and records whose ce_sequence is not the number that the entity
	// table gives; what shifts all records behind it counts once.
	Holes int64 `json:"holes"`
	// BodyMismatch counts records that differ from their cell in body, key,
	// epoch or time, records that are no cell's or another topic's, and cells
	// that are damaged.
	BodyMismatch int64   `json:"body_mismatch"`
	Indexes      []Index `json:"indexes"`
	// Merged is about the merged topic; nil where there is none.
	Merged *Merged `json:"merged,omitempty"`
}

// Merged is the result of comparing the merged topic with the cells of all
// columns. Its numbers mean what those of the Report do; holes of the logs are
// counted there alone.
type Merged struct {
	Topic        string `json:"topic"`
	Records      int64  `json:"records"`
	Missing      int64  `json:"missing"`
	Duplicates   int64  `json:"duplicates"`
	OutOfOrder   int64  `json:"out_of_order"`
	Holes        int64  `json:"holes"`
	BodyMismatch int64  `json:"body_mismatch"`
}

// Clean reports that no difference was found.
func (r *Report) Clean() bool {
	for _, i := range r.Indexes {
		if i.Missing != 0 || i.Stale != 0 || i.Extra != 0 {
			return false
		}
	}
	if m := r.Merged; m != nil && (m.Missing != 0 || m.Duplicates != 0 || m.OutOfOrder != 0 || m.Holes != 0 || m.BodyMismatch != 0) {
		return false
	}
	return r.Missing == 0 && r.Duplicates == 0 && r.OutOfOrder == 0 && r.Holes == 0 && r.BodyMismatch == 0
}

func (r *Report) add(m *merge) {
	r.Cells += m.cells
	c := &m.found
	r.Records += c.records
	r.Missing += c.missing
	r.Duplicates += c.duplicates
	r.OutOfOrder += c.outOfOrder
	r.Holes += c.holes
	r.BodyMismatch += c.mismatches
	if t := r.Merged; t != nil {
		c = &m.merged
		t.Records += c.records
		t.Missing += c.missing
		t.Duplicates += c.duplicates
		t.OutOfOrder += c.outOfOrder
		t.Holes += c.holes
		t.BodyMismatch += c.mismatches
	}
}

// Config says what to compare.
type Config struct {
	Datastore string
	Shards    int
	// Kafka and Prefix say where the topics are.
	Kafka    kafka.Config
	Prefix   string
	Entities Entities
	// Merged says that the datastore has a merged topic. One that is there is
	// compared in any case.
	Merged bool
	// Indexes compares the datastore's indexes with the cells up to the given
	// added_id of each shard; nil means that there are none.
	Indexes func(ctx context.Context, upTo []cellog.AddedID) ([]Index, error)
	// Wait bounds the wait for captured cells to become final. Cells that are
	// not in Kafka after it count as missing. Zero means DefaultWait.
	Wait time.Duration
	// Parallel is the number of partitions compared at a time. Zero means
	// DefaultParallel.
	Parallel int
	// Page is the number of cells read at a time. Zero means DefaultPage.
	Page int
	// Detail is told of each difference; nil means nobody listens. Never
	// called concurrently.
	Detail func(text string)
	// Progress is told of partitions done. Never called concurrently.
	Progress func(done, total int)
}

type run struct {
	cfg    Config
	admin  *kafka.Admin
	bounds []cellog.AddedID // by shard: the last added_id to compare
	heads  []cellog.AddedID // by shard: the last added_id, noted after ends
	topics []string
	merged bool
	ends   map[string]map[int32]kafka.Offsets

	mu     sync.Mutex // guards report and done, and calls of Detail and Progress
	report Report
	done   int
}

// Run compares one datastore. The error is for when it could not be done; what
// was found is in the report.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if err := errors.Join(cellog.CheckDatastore(cfg.Datastore), cellog.CheckShards(cfg.Shards)); err != nil {
		return Report{}, err
	}
	if cfg.Entities == nil {
		return Report{}, errors.New("verify: Entities is nil")
	}
	if cfg.Wait == 0 {
		cfg.Wait = DefaultWait
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = DefaultParallel
	}
	if cfg.Page == 0 {
		cfg.Page = DefaultPage
	}
	admin, err := kafka.NewAdmin(cfg.Kafka)
	if err != nil {
		return Report{}, err
	}
	defer admin.Close()
	r := &run{cfg: cfg, admin: admin, merged: cfg.Merged, report: Report{Shards: cfg.Shards, Indexes: []Index{}}}
	if r.bounds, err = r.lasts(ctx); err != nil {
		return Report{}, err
	}
	if err := r.beyond(ctx); err != nil {
		return Report{}, err
	}
	if err := r.waitUntilFinal(ctx); err != nil {
		return Report{}, err
	}
	if err := r.compare(ctx); err != nil {
		return Report{}, err
	}
	if cfg.Indexes != nil {
		indexes, err := cfg.Indexes(ctx, r.bounds)
		if err != nil {
			return Report{}, fmt.Errorf("comparing the indexes: %w", err)
		}
		r.report.Indexes = append(r.report.Indexes, indexes...)
	}
	return r.report, nil
}

// lasts returns where every shard's log ends now.
func (r *run) lasts(ctx context.Context) ([]cellog.AddedID, error) {
	out := make([]cellog.AddedID, r.cfg.Shards)
	return out, r.eachShard(ctx, func(ctx context.Context, s cellog.ShardID) (err error) {
		out[s], err = r.cfg.Entities.Last(ctx, r.cfg.Datastore, s)
		return err
	})
}

func (r *run) eachShard(ctx context.Context, f func(ctx context.Context, s cellog.ShardID) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for s := range cellog.ShardID(r.cfg.Shards) {
		g.Go(func() error {
			if err := f(ctx, s); err != nil {
				return fmt.Errorf("shard %s: %w", cellog.DatabaseName(r.cfg.Datastore, s), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// beyond looks for rows above the last added_id of a shard's log. While writes
// go on there may be some; but none above the one that it gives later.
func (r *run) beyond(ctx context.Context) error {
	return r.eachShard(ctx, func(ctx context.Context, s cellog.ShardID) error {
		after, err := r.cfg.Entities.Last(ctx, r.cfg.Datastore, s)
		for more := true; more && err == nil; {
			more, after, err = r.beyondPage(ctx, s, after)
		}
		return err
	})
}

func (r *run) beyondPage(ctx context.Context, s cellog.ShardID, after cellog.AddedID) (more bool, next cellog.AddedID, err error) {
	page, err := r.cfg.Entities.Read(ctx, r.cfg.Datastore, s, after, math.MaxInt64, r.cfg.Page)
	if err != nil || len(page) == 0 {
		return false, 0, err
	}
	last, err := r.cfg.Entities.Last(ctx, r.cfg.Datastore, s)
	if err != nil {
		return false, 0, err
	}
	for _, c := range page {
		if c.AddedID > last {
			more = true
			r.mu.Lock()
			r.report.Holes++
			r.mu.Unlock()
			r.detail("beyond: %s has added_id %d, but its shard_log ends at %d", cellog.DatabaseName(r.cfg.Datastore, s), c.AddedID, last)
		}
	}
	return more, page[len(page)-1].AddedID, nil
}

// compare finds the topics and compares partition by partition.
func (r *run) compare(ctx context.Context) error {
	stem := r.cfg.Prefix + r.cfg.Datastore + "."
	names, err := r.admin.Topics(ctx, stem)
	if err != nil {
		return err
	}
	r.ends = map[string]map[int32]kafka.Offsets{}
	partitions := 0
	for _, name := range names {
		column := strings.TrimPrefix(name, stem)
		if column != position.Merged && cellog.CheckColumn(column) != nil {
			continue // nobody's
		}
		r.merged = r.merged || column == position.Merged
		ends, err := r.admin.CommittedOffsets(ctx, name)
		if err != nil {
			return err
		}
		if partitions != 0 && len(ends) != partitions {
			return fmt.Errorf("topic %s has %d partitions, another one of the datastore has %d: they must agree", name, len(ends), partitions)
		}
		partitions = len(ends)
		r.topics = append(r.topics, name)
		r.ends[name] = ends
	}
	if r.heads, err = r.lasts(ctx); err != nil {
		return err
	}
	if r.merged {
		r.report.Merged = &Merged{Topic: stem + position.Merged}
	}
	if partitions == 0 {
		partitions = cellog.DefaultPartitions(r.cfg.Shards)
	}
	if err := cellog.CheckPartitions(partitions, r.cfg.Shards); err != nil {
		return fmt.Errorf("topics of %s: %w", r.cfg.Datastore, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.cfg.Parallel)
	for p := range partitions {
		g.Go(func() error {
			m := newMerge(r, int32(p), partitions)
			if err := m.run(ctx); err != nil {
				return fmt.Errorf("partition %d: %w", p, err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.report.add(m)
			r.done++
			if r.cfg.Progress != nil {
				r.cfg.Progress(r.done, partitions)
			}
			return nil
		})
	}
	return g.Wait()
}

func (r *run) detail(format string, args ...any) {
	if r.cfg.Detail == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cfg.Detail(fmt.Sprintf(format, args...))
}

// columnsOf lists the topics by column, the merged one under position.Merged.
func (r *run) columnsOf() map[string]string {
	stem := r.cfg.Prefix + r.cfg.Datastore + "."
	out := map[string]string{}
	for _, t := range r.topics {
		out[strings.TrimPrefix(t, stem)] = t
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
