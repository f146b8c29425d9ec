package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/schemas/position"
)

// A shard changes its cluster in two records, each written under the
// transactional id of the tailer of the topic's cluster, which fences that
// tailer; it starts anew and reads them:
//
//	in the old owner's topic  {owner: new, epoch e,   last}   HandOver
//	in the new owner's topic  {owner: new, epoch e+1, last}   TakeOver
//
// Of all records of a shard in all topics the one of the highest epoch counts.

// ErrNotOwner is returned when a shard belongs to another cluster than the one
// that was to hand it over, or take it.
var ErrNotOwner = errors.New("the shard belongs to another cluster")

// Everywhere reads what stands in the positions topics of all clusters, by
// cluster. As Standing does, it never misses what was committed before the call.
func (p *Publisher) Everywhere(ctx context.Context) (map[string]cdc.Positions, error) {
	prefix := cellog.PositionsTopicName(p.cfg.Prefix, "")
	topics, err := p.adm.Topics(ctx, prefix)
	if err != nil {
		return nil, convert(err)
	}
	out := make(map[string]cdc.Positions, len(topics))
	for _, t := range topics {
		cluster := strings.TrimPrefix(t, prefix)
		if out[cluster], err = p.other(cluster).Standing(ctx); err != nil {
			return nil, fmt.Errorf("positions of cluster %s: %w", cluster, err)
		}
	}
	return out, nil
}

// other is p for another cluster.
func (p *Publisher) other(cluster string) *Publisher {
	if cluster == p.cfg.Cluster {
		return p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.others[cluster]
	if o == nil {
		o = &Publisher{cfg: p.cfg, adm: p.adm}
		o.cfg.Cluster = cluster
		if p.others == nil {
			p.others = map[string]*Publisher{}
		}
		p.others[cluster] = o
	}
	return o
}

// Newest returns the record of a shard that counts, and in which cluster's topic
// it is; in is empty if there is none: then nothing of it was published yet.
func Newest(all map[string]cdc.Positions, k cdc.ShardKey) (s position.Shard, in string) {
	for cluster, pos := range all {
		// A record of epoch 0 only tells a tailer that the shard is not its.
		if r, ok := pos.Shards[k]; ok && r.Epoch > s.Epoch {
			s, in = r, cluster
		}
	}
	return s, in
}

// handedOver returns the shards that others have handed over to the cluster,
// also those that it has taken over since. It is called before a session is
// opened, which has to be quick: what comes in between is taken over later.
func (p *Publisher) handedOver(ctx context.Context) (map[cdc.ShardKey]position.Shard, error) {
	all, err := p.Everywhere(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[cdc.ShardKey]position.Shard)
	for cluster, other := range all {
		for k, s := range other.Shards {
			if cluster != p.cfg.Cluster && s.Owner == p.cfg.Cluster && s.Epoch > out[k].Epoch {
				out[k] = s
			}
		}
	}
	return out, nil
}

// adopt adds to a cluster's positions what was handed over to it and was not taken
// over yet.
func adopt(pos *cdc.Positions, handed map[cdc.ShardKey]position.Shard) {
	for k, s := range handed {
		if s.Epoch > pos.Shards[k].Epoch {
			pos.Shards[k] = s
		}
	}
}

// amendTries bounds how often an amendment goes on after it was fenced.
const amendTries = 20

// amend fences the cluster's tailer and lets f make a commit of the positions
// that then stand, which it hands to the function given. It goes on when the
// tailer, as it starts anew, fences it in turn. A cluster that is not open is
// left alone: cdc.ErrNotOpened.
func (p *Publisher) amend(ctx context.Context, beforeEnd string, f func(pos cdc.Positions, commit func(shards map[cdc.ShardKey]position.Shard) error) error) error {
	for try := 1; ; try++ {
		err := p.amendOnce(ctx, beforeEnd, f)
		if !errors.Is(err, cdc.ErrFenced) || try == amendTries {
			return err
		}
		// A tailer that has opened goes on until it is fenced again.
		t := time.NewTimer(rand.N(time.Duration(min(try, 10)) * 50 * time.Millisecond))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

func (p *Publisher) amendOnce(ctx context.Context, beforeEnd string, f func(pos cdc.Positions, commit func(map[cdc.ShardKey]position.Shard) error) error) error {
	// A producer would fence a promoter: so look first.
	pos, err := p.Standing(ctx)
	if err == nil {
		err = p.open(pos)
	}
	if err != nil {
		return err
	}
	opened, pos, err := p.Open(ctx)
	if err != nil {
		return err
	}
	s := opened.(*session)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		s.Close(ctx)
	}()
	if err := p.open(pos); err != nil {
		return err
	}
	s.beforeEnd = beforeEnd
	return f(pos, func(shards map[cdc.ShardKey]position.Shard) error {
		cluster := *pos.Cluster
		// The tailer starts from the tables, not from a place in the binlog at
		// which the shard was not its. It keeps its mark, or it would have to
		// stand by for itself.
		cluster.GTID, cluster.UpdatedAt = "", time.Now().UTC()
		if err := s.Commit(ctx, cdc.Commit{Cluster: cluster, Shards: shards}); err != nil {
			return err
		}
		return p.settled(ctx)
	})
}

// open returns nil if a cluster is open.
func (p *Publisher) open(pos cdc.Positions) error {
	switch c := pos.Cluster; {
	case c == nil:
		return fmt.Errorf("cluster %s: %w: %w", p.cfg.Cluster, cdc.ErrNotOpened, ErrNeverOpened)
	case c.State != position.Open:
		return fmt.Errorf("cluster %s: %w: it is %s in term %d: finish that first (`cellog cluster promote %s`)", p.cfg.Cluster, cdc.ErrNotOpened, c.State, c.Term, p.cfg.Cluster)
	}
	return nil
}

// Disown makes sure that the cluster's tailer leaves a shard alone that belongs
// to another one, before rows of it are copied to the cluster. ErrNotOwner: the
// shard does not belong to owner.
func (p *Publisher) Disown(ctx context.Context, k cdc.ShardKey, owner string) error {
	all, err := p.Everywhere(ctx)
	if err != nil {
		return err
	}
	if s, in := Newest(all, k); in != "" && s.Owner != owner {
		return fmt.Errorf("shard %s: %w: %s", k, ErrNotOwner, s.Owner)
	}
	if s, ok := all[p.cfg.Cluster].Shards[k]; ok && s.Owner != p.cfg.Cluster {
		return nil
	}
	return p.amend(ctx, "publish/disown-before-end", func(pos cdc.Positions, commit func(map[cdc.ShardKey]position.Shard) error) error {
		s, ok := pos.Shards[k]
		switch {
		case ok && s.Owner == p.cfg.Cluster:
			return fmt.Errorf("shard %s: %w: %s", k, ErrNotOwner, s.Owner)
		case ok:
			return nil
		}
		return commit(map[cdc.ShardKey]position.Shard{k: {Owner: owner}})
	})
}

// Fenced calls f while the cluster's tailer is fenced, with the positions that
// stand: who fenced it before can commit nothing any more. Nothing is written.
func (p *Publisher) Fenced(ctx context.Context, f func(pos cdc.Positions) error) error {
	return p.amend(ctx, "", func(pos cdc.Positions, _ func(map[cdc.ShardKey]position.Shard) error) error { return f(pos) })
}

// HandOverRequest says what is handed over.
type HandOverRequest struct {
	Shard cdc.ShardKey
	// To is the new owner.
	To string
	// Epoch is the shard's own, Last the last of its cells.
	Epoch cellog.Epoch
	Last  cellog.AddedID
	// Locked calls commit while nobody can change the shard's state on the
	// server that the cluster's record names, if it is still moving to the new
	// owner in that epoch, with that last cell. It may be called again.
	Locked func(cluster position.Cluster, commit func() error) error
}

// HandOver makes another cluster the owner of a shard of this one. All of its
// cells must be final. It can be repeated: done already, it does nothing.
func (p *Publisher) HandOver(ctx context.Context, r HandOverRequest) error {
	return p.amend(ctx, "publish/hand-over-before-end", func(pos cdc.Positions, commit func(map[cdc.ShardKey]position.Shard) error) error {
		s, published := pos.Shards[r.Shard]
		switch {
		case s.Owner == r.To && s.Epoch == r.Epoch:
			return nil
		case published && s.Owner != p.cfg.Cluster:
			return fmt.Errorf("shard %s: %w: %s", r.Shard, ErrNotOwner, s.Owner)
		case s.Epoch > r.Epoch:
			return fmt.Errorf("shard %s is of epoch %d, not %d: a promotion has voided the move", r.Shard, s.Epoch, r.Epoch)
		case s.Last != r.Last:
			return fmt.Errorf("shard %s has cells up to %d, final are those up to %d", r.Shard, r.Last, s.Last)
		}
		s.Owner = r.To
		if s.Epoch < r.Epoch {
			s.Epoch, s.First = r.Epoch, r.Last+1
		}
		return r.Locked(*pos.Cluster, func() error { return commit(map[cdc.ShardKey]position.Shard{r.Shard: s}) })
	})
}

// TakeOver makes the cluster's tailer go on with a shard that was handed over to
// the cluster, with the next epoch. It returns the shard's record; done already,
// also by a promotion, it changes nothing. ErrNotOwner: the shard was not handed
// over to this cluster.
func (p *Publisher) TakeOver(ctx context.Context, k cdc.ShardKey) (taken position.Shard, err error) {
	handed, err := p.handedOver(ctx)
	if err != nil {
		return taken, err
	}
	err = p.amend(ctx, "publish/take-over-before-end", func(pos cdc.Positions, commit func(map[cdc.ShardKey]position.Shard) error) error {
		own := pos.Shards[k]
		adopt(&pos, handed)
		taken = pos.Shards[k]
		switch {
		case taken.Owner != p.cfg.Cluster:
			return fmt.Errorf("shard %s: %w: %s", k, ErrNotOwner, taken.Owner)
		case own.Owner == p.cfg.Cluster && own.Epoch == taken.Epoch:
			return nil
		}
		taken.Columns = maps.Clone(taken.Columns)
		taken.Epoch, taken.First = taken.Epoch+1, taken.Last+1
		failpoint.Hit("publish/before-take-over")
		return commit(map[cdc.ShardKey]position.Shard{k: taken})
	})
	return taken, err
}
