package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
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
	// of them, with bodies in stored form. None means that there are none.
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
	// Holes are numbers missing from a shard's log, and records whose
	// ce_sequence is not the number that the entity table gives.
	Holes int64 `json:"holes"`
	// BodyMismatch counts records that differ from their cell in body, key,
	// epoch or time.
	BodyMismatch int64   `json:"body_mismatch"`
	Indexes      []Index `json:"indexes"`
}

// Clean reports that no difference was found.
func (r *Report) Clean() bool {
	for _, i := range r.Indexes {
		if i.Missing != 0 || i.Stale != 0 || i.Extra != 0 {
			return false
		}
	}
	return r.Missing == 0 && r.Duplicates == 0 && r.OutOfOrder == 0 && r.Holes == 0 && r.BodyMismatch == 0
}

func (r *Report) add(o *Report) {
	r.Cells += o.Cells
	r.Records += o.Records
	r.Missing += o.Missing
	r.Duplicates += o.Duplicates
	r.OutOfOrder += o.OutOfOrder
	r.Holes += o.Holes
	r.BodyMismatch += o.BodyMismatch
}

// Config says what to compare.
type Config struct {
	Datastore string
	Shards    int
	// Kafka and Prefix say where the topics are.
	Kafka    kafka.Config
	Prefix   string
	Entities Entities
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
	topics []string
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
	r := &run{cfg: cfg, admin: admin, report: Report{Shards: cfg.Shards, Indexes: []Index{}}}
	if err := r.capture(ctx); err != nil {
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

// capture notes where every shard's log ends now.
func (r *run) capture(ctx context.Context) error {
	r.bounds = make([]cellog.AddedID, r.cfg.Shards)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for s := range r.bounds {
		g.Go(func() error {
			last, err := r.cfg.Entities.Last(ctx, r.cfg.Datastore, cellog.ShardID(s))
			if err != nil {
				return fmt.Errorf("shard %s: %w", cellog.DatabaseName(r.cfg.Datastore, cellog.ShardID(s)), err)
			}
			r.bounds[s] = last
			return nil
		})
	}
	return g.Wait()
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
		if cellog.CheckColumn(strings.TrimPrefix(name, stem)) != nil {
			continue // the merged topic
		}
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
			r.report.add(&m.found)
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

// columnsOf lists the columns of the topics, in order.
func (r *run) columnsOf() map[string]string {
	stem := r.cfg.Prefix + r.cfg.Datastore + "."
	out := map[string]string{}
	for _, t := range r.topics {
		out[strings.TrimPrefix(t, stem)] = t
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
