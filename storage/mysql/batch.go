package mysql

import (
	"bytes"
	"fmt"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
)

// group is the cells of a batch that share a key.
type group struct {
	key     cellog.Key
	members []int // positions in the batch, first wins
	decided bool
}

// batch is one call of Write while it is worked on, by one goroutine.
type batch struct {
	puts   []cellog.Put
	groups []*group
	byKey  map[cellog.Key]*group
	stored []cellog.Stored
	errs   []error

	wantSafe bool       // its cells are to be made safe: their primary tells what it knows
	standing []standing // those that stand, if wantSafe
}

func newBatch(puts []cellog.Put) *batch {
	b := &batch{
		puts: puts, stored: make([]cellog.Stored, len(puts)), errs: make([]error, len(puts)),
		byKey: make(map[cellog.Key]*group, len(puts)), groups: make([]*group, 0, len(puts)),
	}
	for i, p := range puts {
		g := b.byKey[p.Key]
		if g == nil {
			g = &group{key: p.Key}
			b.byKey[p.Key] = g
			b.groups = append(b.groups, g)
		}
		g.members = append(g.members, i)
	}
	return b
}

func (b *batch) done() bool {
	for _, g := range b.groups {
		if !g.decided {
			return false
		}
	}
	return true
}

// open returns the groups that are not decided yet, in order.
func (b *batch) open() []*group {
	var out []*group
	for _, g := range b.groups {
		if !g.decided {
			out = append(out, g)
		}
	}
	return out
}

func (b *batch) fail(err error) {
	for _, g := range b.groups {
		if !g.decided {
			b.refuse(g, err)
		}
	}
}

func (b *batch) refuse(g *group, err error) {
	g.decided = true
	for _, i := range g.members {
		b.errs[i] = err
	}
}

// created answers a group whose first member this batch has stored.
func (b *batch) created(g *group, at cellog.Stored, k *known) {
	if b.wantSafe {
		b.standing = append(b.standing, standing{g, b.puts[g.members[0]], at, k})
	}
	first := b.puts[g.members[0]].Body
	at.Outcome = cellog.Created
	b.stored[g.members[0]] = at
	b.compare(g, g.members[1:], first, at)
	g.decided = true
}

// stands answers a group whose key was taken before this batch.
func (b *batch) stands(g *group, c *cellog.Cell, k *known) {
	at := cellog.Stored{Shard: c.Shard, AddedID: c.AddedID, Epoch: c.Epoch, CreatedAt: c.CreatedAt}
	if b.wantSafe {
		b.standing = append(b.standing, standing{g, cellog.Put{Key: c.Key, Body: c.Body, TraceParent: c.TraceParent}, at, k})
	}
	b.compare(g, g.members, c.Body, at)
	g.decided = true
}

func (b *batch) compare(g *group, members []int, standing []byte, at cellog.Stored) {
	for _, i := range members {
		equal := bytes.Equal(b.puts[i].Body, standing)
		if !equal {
			var err error
			if equal, err = body.Equal(b.puts[i].Body, standing); err != nil {
				b.errs[i] = fmt.Errorf("cell %s: the body that stands cannot be compared: %w (%w)", g.key, storage.ErrDamaged, err)
				continue
			}
		}
		at.Outcome = cellog.Conflict
		if equal {
			at.Outcome = cellog.Same
		}
		b.stored[i] = at
	}
}
