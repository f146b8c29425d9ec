package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/tests/harness"
)

// holds keeps servers that were killed from being started again.
type holds struct {
	mu sync.Mutex
	on map[string]chan struct{} // by node: closed when it may start
}

func (h *holds) hold(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.on == nil {
		h.on = map[string]chan struct{}{}
	}
	if h.on[node] == nil {
		h.on[node] = make(chan struct{})
	}
}

// wait returns when a node may start.
func (h *holds) wait(node string) {
	h.mu.Lock()
	c := h.on[node]
	h.mu.Unlock()
	if c != nil {
		<-c
	}
}

func (h *holds) release(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.on[node]; c != nil {
		close(c)
		delete(h.on, node)
	}
}

// end releases all.
func (h *holds) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for node, c := range h.on {
		close(c)
		delete(h.on, node)
	}
}

// anyNode finds a node, also one that is no live host.
func (r *rig) anyNode(name string) (out local.Node) {
	r.t.Helper()
	for _, c := range r.local.Clusters() {
		for _, n := range c.Nodes {
			if n.Name == name {
				return n
			}
		}
	}
	r.t.Fatalf("no node %s", name)
	return out
}

// takeDown kills a server, which stays away until bringBack.
func (r *rig) takeDown(n local.Node) error {
	r.gone[n.Name] = true
	r.down.hold(n.Name)
	if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
		return err
	}
	return harness.Poll(r.t, fires, func() error {
		if !harness.Gone(n.PID) {
			return fmt.Errorf("%s (%d) lives", n.Name, n.PID)
		}
		return nil
	})
}

// loseDisk kills a server and deletes all that it has.
func (r *rig) loseDisk(n local.Node) error {
	if err := r.takeDown(n); err != nil {
		return err
	}
	dir := r.diskOf(n)
	all, err := os.ReadDir(dir)
	if err != nil || len(all) == 0 {
		return errors.Join(err, fmt.Errorf("%s has no data", n.Name))
	}
	for _, e := range all { // the directory may be a file system of its own
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) diskOf(n local.Node) string {
	return filepath.Join(r.dir, "data", "clusters", n.Name[:2], n.Name)
}

// hasNoDisk returns an error if anything of a server is there.
func (r *rig) hasNoDisk(n local.Node) error {
	all, err := os.ReadDir(r.diskOf(n))
	if err == nil && len(all) > 0 {
		err = fmt.Errorf("%s has %s: its data was to be gone for ever", n.Name, all[0].Name())
	}
	return err
}

// bringBack lets servers that were taken down start again, and waits for them.
// They are no live hosts before they have rejoined.
func (r *rig) bringBack(nodes ...local.Node) error {
	for _, n := range nodes {
		r.down.release(n.Name)
	}
	return harness.Poll(r.t, time.Minute, func() error {
		for _, n := range nodes {
			if r.anyNode(n.Name).PID == n.PID {
				return fmt.Errorf("%s is not back", n.Name)
			}
		}
		return r.local.Ready()
	})
}
