package storage

import (
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/cellog/cellog"
)

// Node is one MySQL server.
type Node struct {
	// Name is the node's name, unique in its cluster.
	Name string
	// Addr is host:port, or the path of a unix socket.
	Addr string
	// User and Password are those of the worker's account.
	User, Password string
}

// Cluster is a storage cluster: servers that hold the same shards, one of them
// the master. Which one is for the servers to say.
type Cluster struct {
	Name  string
	Nodes []Node
}

// Check returns an error that names what is missing or double.
func (c Cluster) Check() error {
	if c.Name == "" {
		return fmt.Errorf("cluster: name is empty")
	}
	if len(c.Nodes) == 0 {
		return fmt.Errorf("cluster %q: nodes: want at least one", c.Name)
	}
	seen := map[string]bool{}
	for i, n := range c.Nodes {
		switch {
		case n.Name == "":
			return fmt.Errorf("cluster %q: nodes[%d].name is empty", c.Name, i)
		case n.Addr == "":
			return fmt.Errorf("cluster %q: node %q: addr is empty, want host:port or a socket's path", c.Name, n.Name)
		case seen[n.Name]:
			return fmt.Errorf("cluster %q: node %q is there twice", c.Name, n.Name)
		}
		seen[n.Name] = true
	}
	return nil
}

// Datastore is what the servers record about a datastore.
type Datastore struct {
	Name       string
	Shards     int
	Partitions int
}

// Route says where a shard is open.
type Route struct {
	Datastore string
	Shard     cellog.ShardID
	Cluster   string
	Node      string
	Epoch     cellog.Epoch
}

// String returns datastore/shard at cluster/node in epoch n.
func (r Route) String() string {
	return fmt.Sprintf("%s/%d at %s/%s in epoch %d", r.Datastore, r.Shard, r.Cluster, r.Node, r.Epoch)
}

// Routes is the routing table. All methods may be called at the same time.
type Routes struct {
	mu         sync.RWMutex
	datastores map[string]Datastore
	routes     map[string][]Route // by datastore; Epoch 0: no route
}

// SetDatastore records a datastore; its known routes stay.
func (t *Routes) SetDatastore(d Datastore) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.datastores == nil {
		t.datastores, t.routes = map[string]Datastore{}, map[string][]Route{}
	}
	t.datastores[d.Name] = d
	if have := t.routes[d.Name]; len(have) != d.Shards {
		t.routes[d.Name] = make([]Route, d.Shards)
	}
}

// Set records a route of a known datastore; one with a lower epoch than the
// table's is ignored, an unknown datastore or shard too.
func (t *Routes) Set(r Route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rs := t.routes[r.Datastore]
	if int(r.Shard) < 0 || int(r.Shard) >= len(rs) || rs[r.Shard].Epoch > r.Epoch {
		return
	}
	rs[r.Shard] = r
}

// Route returns the route to a shard. The error is ErrUnknownDatastore,
// ErrUnknownShard, or ErrUnavailable when no server has the shard open.
func (t *Routes) Route(datastore string, shard cellog.ShardID) (Route, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	rs, ok := t.routes[datastore]
	if !ok {
		return Route{}, fmt.Errorf("datastore %q: %w", datastore, ErrUnknownDatastore)
	}
	if int(shard) < 0 || int(shard) >= len(rs) {
		return Route{}, fmt.Errorf("datastore %q, shard %d of %d: %w", datastore, shard, len(rs), ErrUnknownShard)
	}
	r := rs[shard]
	if r.Epoch == 0 {
		return Route{}, fmt.Errorf("datastore %q, shard %d: no writable server has it open: %w", datastore, shard, ErrUnavailable)
	}
	return r, nil
}

// Datastore returns what is recorded about a datastore, or
// ErrUnknownDatastore.
func (t *Routes) Datastore(name string) (Datastore, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, ok := t.datastores[name]
	if !ok {
		return Datastore{}, fmt.Errorf("datastore %.40q: %w", name, ErrUnknownDatastore)
	}
	return d, nil
}

// Datastores returns all known datastores by name.
func (t *Routes) Datastores() []Datastore {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]Datastore, 0, len(t.datastores))
	for _, d := range t.datastores {
		out = append(out, d)
	}
	sort.Slice(out, func(i, j int) bool { return strings.Compare(out[i].Name, out[j].Name) < 0 })
	return out
}
