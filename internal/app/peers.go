package app

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/ingest"
	"github.com/cellog/cellog/ingest/peer"
	"github.com/cellog/cellog/internal/away"
	"github.com/cellog/cellog/storage"
)

const (
	// beatEvery is how often a worker announces itself and looks for others.
	beatEvery = 500 * time.Millisecond
	// goneAfter is how long a worker counts as alive after its last beat.
	goneAfter = 2500 * time.Millisecond
)

// directory keeps what workers tell of each other; *mysql.Store does.
type directory interface {
	Announce(ctx context.Context, name, url string) error
	Withdraw(ctx context.Context, name string) error
	Workers(ctx context.Context) ([]storage.Sighting, error)
}

// peers finds the other workers and says which shards are whose: rendezvous
// hashing over those alive. Alive is whose beat has changed within goneAfter,
// by this process's own clock: no two clocks are compared.
type peers struct {
	name, url string
	dir       directory
	client    *peer.Client
	log       *slog.Logger

	alive atomic.Pointer[[]*worker] // the other ones

	cancel context.CancelFunc
	wg     sync.WaitGroup

	seen map[string]*worker // by name; only run uses it
}

// worker is another worker.
type worker struct {
	*peer.Peer
	url   string
	beats map[string]time.Time // by node: the last beat, as that node dates it
	seen  time.Time            // when a beat changed; zero: never
	away  away.Mark
}

// newPeers makes the peers of a worker; url is set by start.
func newPeers(dir directory, log *slog.Logger) *peers {
	return &peers{name: uuid.NewString(), dir: dir, client: peer.NewClient(), log: log, seen: map[string]*worker{}}
}

// start announces this worker under a base URL until stop.
func (p *peers) start(url string) {
	p.url = url
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.wg.Go(func() {
		t := time.NewTicker(beatEvery)
		defer t.Stop()
		for {
			p.look(ctx)
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
		}
	})
}

// stop tells the others that this worker goes, and forwards no more.
func (p *peers) stop(ctx context.Context) {
	if p.cancel == nil {
		return
	}
	p.cancel()
	p.wg.Wait()
	p.alive.Store(nil)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := p.dir.Withdraw(ctx, p.name); err != nil {
		p.log.Info("could not tell the other workers that this one stops: they will see", "error", err)
	}
}

// close drops the connections; call it when nothing is forwarded any more.
func (p *peers) close() { p.client.Close() }

func (p *peers) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goneAfter/2)
	defer cancel()
	if err := p.dir.Announce(ctx, p.name, p.url); err != nil {
		p.log.Debug("could not announce this worker", "error", err)
	}
	sightings, err := p.dir.Workers(ctx)
	if err != nil {
		p.log.Debug("could not look for other workers", "error", err)
	}
	p.note(sightings, time.Now())
}

// note takes sightings in, and works out who is alive.
func (p *peers) note(sightings []storage.Sighting, now time.Time) {
	for _, s := range sightings {
		if s.Name == p.name {
			continue
		}
		w := p.seen[s.Name]
		if w == nil || w.url != s.URL {
			w = &worker{Peer: p.client.Peer(s.Name, s.URL), url: s.URL, beats: map[string]time.Time{}}
			p.seen[s.Name] = w
		}
		if old, ok := w.beats[s.Node]; ok && !old.Equal(s.Beat) {
			w.seen = now
		}
		w.beats[s.Node] = s.Beat
	}
	listed := make(map[string]bool, len(sightings))
	for _, s := range sightings {
		listed[s.Name] = true
	}
	var alive []*worker
	for name, w := range p.seen {
		switch {
		case !w.seen.IsZero() && now.Sub(w.seen) < goneAfter:
			alive = append(alive, w)
		case !listed[name]:
			delete(p.seen, name)
		}
	}
	p.alive.Store(&alive)
}

// Home returns the worker of a shard, nil when it is this one.
func (p *peers) Home(datastore string, shard cellog.ShardID) ingest.Peer {
	others := p.alive.Load()
	if others == nil || len(*others) == 0 {
		return nil
	}
	key := cellog.DatabaseName(datastore, shard)
	var home *worker
	best, now := score(key, p.url), time.Now()
	for _, w := range *others {
		if s := score(key, w.url); s > best && !w.away.Is(now) {
			home, best = w, s
		}
	}
	if home == nil {
		return nil
	}
	return home
}

// score is the weight of a worker for a shard.
func score(key, url string) uint32 { return uint32(cellog.Murmur2([]byte(url + "#" + key))) }

// Write forwards, and leaves the worker alone for a while if it does not
// answer.
func (w *worker) Write(ctx context.Context, datastore string, puts []cellog.Put) ([]cellog.Stored, []error, bool, error) {
	stored, errs, sent, err := w.Peer.Write(ctx, datastore, puts)
	if err == nil {
		w.away.Answered()
	} else {
		w.away.Silent(time.Now())
	}
	return stored, errs, sent, err
}
