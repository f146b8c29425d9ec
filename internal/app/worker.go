package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cellog/cellog/indexer"
	"github.com/cellog/cellog/indexer/table"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/ingest/httpapi"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage/mysql"
)

// firstLook bounds the wait for Kafka at a start. Without it reads are marked
// stale until it answers.
const firstLook = 2 * time.Second

// Worker is the HTTP node: it takes puts, answers reads and index queries.
type Worker struct {
	cfg    *config.Config
	store  *mysql.Store
	places *places
	ingest *ingest.Ingest
	final  *final
	peers  *peers // nil: it does not forward
	api    *httpapi.API
	server *httpapi.Server
	log    *slog.Logger

	cancelDrain context.CancelFunc
	draining    sync.WaitGroup

	mu      sync.Mutex
	started bool
	stopped bool
}

// NewWorker builds a worker; Start connects and serves.
func NewWorker(cfg *config.Config, env Env) (_ *Worker, err error) {
	w := &Worker{cfg: cfg, final: newFinal(cfg, env), log: env.log()}
	w.store, err = mysql.New(mysql.Config{
		Clusters: Clusters(cfg, workerAccount), Ack: datastoreAcks(cfg), Copies: cfg.Worker.Copies, Marks: w.final, Masters: w.final.opened,
		Logger: env.log(), Registerer: env.Registry,
	})
	if err != nil {
		return nil, err
	}
	limits := body.Limits{Bytes: int(cfg.Limits.BodyBytes), Depth: cfg.Limits.JSONDepth}
	ic := ingest.Config{Store: w.store, Limits: limits, QueueBytes: int64(cfg.Limits.QueueBytes), Registerer: env.Registry}
	if !cfg.Worker.NoBuffering && len(cfg.Clusters) > 1 {
		ic.Buffer = w.store
	}
	name := ""
	if !cfg.Worker.NoForwarding {
		w.peers = newPeers(w.store, env.log())
		ic.Peers, name = w.peers, w.peers.name
	}
	w.ingest, err = ingest.New(ic)
	if err != nil {
		return nil, err
	}
	var index httpapi.Index
	if cfg.Indexer.Schemas != "" {
		indexes, err := indexer.Load(cfg.Indexer.Schemas)
		if err != nil {
			return nil, err
		}
		if w.places, err = newPlaces(cfg, indexerAccount, w.store); err != nil {
			return nil, err
		}
		tables, err := table.New(table.Config{Places: w.places})
		if err != nil {
			return nil, err
		}
		index = indexer.NewQuerier(tables, indexes)
	}
	w.api, err = httpapi.New(httpapi.Config{
		Ingest: w.ingest, Store: w.store, Index: index, Final: w.final.upTo, Limits: limits, Worker: name,
		BatchBytes: int(cfg.Limits.BatchBytes), BatchCells: cfg.Limits.BatchCells,
		PutTimeout: cfg.Worker.PutTimeout, ReadTimeout: cfg.Worker.ReadTimeout,
		Logger: env.log(), Registerer: env.Registry,
	})
	if err != nil {
		return nil, err
	}
	w.server = httpapi.NewServer(w.api, cfg.Worker.Listen)
	return w, nil
}

// Start finds the shards and serves. It returns when requests are answered.
func (w *Worker) Start(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return errors.New("worker: it was stopped; make a new one")
	}
	if w.started {
		return nil
	}
	if err := w.store.Start(ctx); err != nil {
		return err
	}
	w.final.start()
	look, cancelLook := context.WithTimeout(ctx, firstLook)
	w.final.wait(look)
	cancelLook()
	if err := w.server.Start(ctx); err != nil {
		return err
	}
	if w.peers != nil {
		w.peers.start(w.advertised())
	}
	drain, cancel := context.WithCancel(context.Background())
	w.cancelDrain = cancel
	w.draining.Go(func() { mysql.NewDrainer(w.store).Run(drain) })
	w.started = true
	w.log.Info("serving", "http", w.server.Addr())
	return nil
}

// advertised is the URL under which other workers reach this one.
func (w *Worker) advertised() string {
	if w.cfg.Worker.Advertise != "" {
		return w.cfg.Worker.Advertise
	}
	host, port, err := net.SplitHostPort(w.server.Addr())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			return "http://" + net.JoinHostPort(name, port)
		}
	}
	return "http://" + w.server.Addr()
}

// Addr is the address of the HTTP API.
func (w *Worker) Addr() string { return w.server.Addr() }

// Store is the worker's storage, for tools in the same process.
func (w *Worker) Store() *mysql.Store { return w.store }

// Failed gets the error of a listener that ended by itself.
func (w *Worker) Failed() <-chan error { return w.server.Failed() }

// Ready returns nil while every shard of every datastore has a writable
// server.
func (w *Worker) Ready(context.Context) error {
	w.mu.Lock()
	serving := w.started && !w.stopped
	w.mu.Unlock()
	if !serving {
		return errors.New("the worker is not serving")
	}
	lost, shards := 0, 0
	var first error
	for _, d := range w.store.Datastores() {
		for s := range d.Shards {
			shards++
			if _, err := w.store.Route(d.Name, shardID(s)); err != nil {
				lost++
				if first == nil {
					first = err
				}
			}
		}
	}
	if lost > 0 {
		return fmt.Errorf("%d of %d shards have no route (are their servers up, and may the worker's account see them?): %w", lost, shards, first)
	}
	return nil
}

// Stop takes no new requests, finishes those in flight, until the configured
// grace or ctx ends, then closes everything.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return nil
	}
	w.stopped = true
	grace := max(w.cfg.Worker.ShutdownGrace, time.Millisecond)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if w.peers != nil {
		w.peers.stop(ctx)
	}
	err := errors.Join(w.server.Stop(ctx), w.ingest.Stop(ctx))
	if w.peers != nil {
		w.peers.close()
	}
	w.api.Close()
	if w.cancelDrain != nil {
		w.cancelDrain()
		w.draining.Wait()
	}
	w.final.stop()
	err = errors.Join(err, w.store.Stop(ctx))
	if w.places != nil {
		err = errors.Join(err, w.places.close())
	}
	return err
}
