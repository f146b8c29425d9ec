package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/cellog/cellog/internal/mysqlaccounts"
	"github.com/cellog/cellog/internal/mysqlserver"
)

// topology is what a data directory remembers.
type topology struct {
	Flavour   mysqlserver.Flavour `json:"flavour"`
	Clusters  []*clusterState     `json:"clusters"`
	KafkaPort int                 `json:"kafka_port,omitempty"`
}

type clusterState struct {
	Name string `json:"name"`
	// Master is the first node, until SetMaster names another one.
	Master string `json:"master"`
	// Ready is set when the accounts exist and the minions follow.
	Ready bool         `json:"ready"`
	Nodes []*nodeState `json:"nodes"`
}

type nodeState struct {
	Name     string `json:"name"`
	Port     int    `json:"port"`
	ServerID uint32 `json:"server_id"`
}

func newTopology(flavour mysqlserver.Flavour, clusters int, minions func(cluster int) int) *topology {
	t := &topology{Flavour: flavour}
	for c := range clusters {
		cs := &clusterState{Name: "c" + strconv.Itoa(c+1)}
		for n := range minions(c) + 1 {
			cs.Nodes = append(cs.Nodes, &nodeState{Name: cs.Name + string(rune('a'+n)), ServerID: uint32((c+1)*100 + n + 1)})
		}
		cs.Master = cs.Nodes[0].Name
		t.Clusters = append(t.Clusters, cs)
	}
	return t
}

// loadTopology reads what is there and compares it with what is wanted, or
// makes a new one.
func loadTopology(cfg Config) (*topology, error) {
	path := filepath.Join(cfg.DataDir, "topology.json")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		bin, err := mysqlserver.Find(cfg.Flavour, cfg.Binary)
		if err != nil {
			return nil, err
		}
		clusters := max(2, len(cfg.Minions))
		if cfg.Clusters > 0 {
			clusters = cfg.Clusters
		}
		t := newTopology(bin.Flavour, clusters, cfg.minions)
		return t, t.save(cfg.DataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("deploy/local: %w", err)
	}
	t := &topology{}
	err = json.Unmarshal(raw, t)
	if err == nil && (len(t.Clusters) == 0 || len(t.Clusters[0].Nodes) == 0) {
		err = errors.New("it names no node")
	}
	if err != nil {
		return nil, fmt.Errorf("deploy/local: %s is damaged: %w", path, err)
	}
	const hint = "leave the option out, or choose another data directory"
	if cfg.Clusters > 0 && cfg.Clusters != len(t.Clusters) {
		return nil, fmt.Errorf("%w: %s has %d clusters, not %d: %s", ErrMismatch, cfg.DataDir, len(t.Clusters), cfg.Clusters, hint)
	}
	if n := len(cfg.Minions); n > 1 && n != len(t.Clusters) {
		return nil, fmt.Errorf("%w: %s has %d clusters, not %d: %s", ErrMismatch, cfg.DataDir, len(t.Clusters), n, hint)
	}
	for i, c := range t.Clusters {
		if has := len(c.Nodes) - 1; len(cfg.Minions) > 0 && cfg.minions(i) != has {
			return nil, fmt.Errorf("%w: %s has %d minions in cluster %s, not %d: %s", ErrMismatch, cfg.DataDir, has, c.Name, cfg.minions(i), hint)
		}
	}
	if cfg.Flavour != mysqlserver.Auto && cfg.Flavour != t.Flavour {
		return nil, fmt.Errorf("%w: %s is of %s, not %s: %s", ErrMismatch, cfg.DataDir, t.Flavour, cfg.Flavour, hint)
	}
	return t, nil
}

func (t *topology) save(dir string) error {
	raw, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("deploy/local: %w", err)
	}
	return writeFile(filepath.Join(dir, "topology.json"), append(raw, '\n'))
}

// loadAccounts reads the accounts or makes them.
func loadAccounts(dir string) (mysqlaccounts.Set, error) {
	path := filepath.Join(dir, "secrets")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		set := mysqlaccounts.NewSet()
		raw, err := json.MarshalIndent(set, "", "  ")
		if err != nil {
			return set, fmt.Errorf("deploy/local: %w", err)
		}
		return set, writeFile(path, append(raw, '\n'))
	}
	var set mysqlaccounts.Set
	if err == nil {
		if json.Unmarshal(raw, &set) != nil || set.Admin.Password == "" { // its error would show the text
			err = errors.New("not the JSON that was written here")
		}
	}
	if err != nil {
		return set, fmt.Errorf("deploy/local: %s: %w", path, err)
	}
	return set, nil
}

// writeFile replaces a file as a whole, readable for this user only.
func writeFile(path string, b []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("deploy/local: %w", err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("deploy/local: %w", err)
	}
	return nil
}

// lockDir takes the data directory for this process. The kernel gives it back
// when the process is gone, however that ends.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("deploy/local: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		pid, _ := os.ReadFile(path) // for the text only
		err = fmt.Errorf("%w: %s is used by process %s: stop it first, or choose another directory", ErrInUse, dir, strings.TrimSpace(string(pid)))
	}
	if err == nil {
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
