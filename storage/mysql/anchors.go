package mysql

import (
	"sync"

	"github.com/cellog/cellog"
)

// maxAnchors bounds the remembered places; 4,096 take about half a megabyte.
const maxAnchors = 4096

type anchorKey struct {
	datastore string
	shard     cellog.ShardID
	column    string
}

// anchor says that n cells of a column are at or below id.
type anchor struct {
	id cellog.AddedID
	n  cellog.Sequence
}

// anchors remembers, per shard and column, the last place up to which its
// cells were counted, so that a reader who pages through a log does not count
// from the start each time. Only final places are put: they never change.
type anchors struct {
	mu sync.Mutex
	m  map[anchorKey]anchor
}

func newAnchors() *anchors { return &anchors{m: map[anchorKey]anchor{}} }

func (a *anchors) get(k anchorKey) anchor {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.m[k]
}

func (a *anchors) put(k anchorKey, v anchor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.m[k]; !ok && len(a.m) >= maxAnchors {
		for old := range a.m { // any one: a lost place costs a count
			delete(a.m, old)
			break
		}
	}
	a.m[k] = v
}
