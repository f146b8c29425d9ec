package devbroker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

// backup is the folder that holds compacted partitions as they were, while
// their compaction runs.
const backup = "compacting"

// compact lets kfake compact the topics that want it, while no client is there.
// kfake removes a partition's files before it writes the new ones; hard links
// keep them until all is done.
func compact(dir string, above int64, log *slog.Logger) error {
	wanted, err := compacted(dir)
	if err != nil {
		return err
	}
	dirs, err := partitionDirs(dir)
	if err != nil {
		return err
	}
	var large []string
	for _, d := range dirs {
		name := filepath.Base(d)
		topic, err := url.PathUnescape(name[:max(0, strings.LastIndexByte(name, '-'))])
		if err != nil || !wanted[topic] {
			continue
		}
		size, err := treeSize(d)
		if err != nil {
			return err
		}
		if size >= above {
			large = append(large, d)
			log.Info("compacting", "partition", name, "bytes", size)
		}
	}
	if len(large) == 0 {
		return nil
	}
	tmp := filepath.Join(dir, backup+".new")
	for _, d := range large {
		if err := linkTree(d, filepath.Join(tmp, filepath.Base(d))); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, filepath.Join(dir, backup)); err != nil {
		return err
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DataDir(dir), kfake.BrokerConfigs(map[string]string{
		"log.retention.ms": "-1", "log.cleaner.backoff.ms": never,
	}))
	if err != nil {
		return err
	}
	c.Compact()
	c.Close()
	return dropBackup(dir)
}

// dropBackup removes the backup, and at once as a whole: half of one must never
// be restored.
func dropBackup(dir string) error {
	tmp := filepath.Join(dir, backup+".new")
	if err := os.Rename(filepath.Join(dir, backup), tmp); err != nil {
		return err
	}
	return os.RemoveAll(tmp)
}

// restoreBackup undoes a compaction that was cut off.
func restoreBackup(dir string) error {
	from := filepath.Join(dir, backup)
	if err := os.RemoveAll(from + ".new"); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		to := filepath.Join(dir, "partitions", e.Name())
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		if err := linkTree(filepath.Join(from, e.Name()), to); err != nil {
			return err
		}
	}
	return dropBackup(dir)
}

// compacted returns the topics whose clean-up policy is to compact.
func compacted(dir string) (map[string]bool, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "topics.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var t struct {
		Topics []struct {
			Name    string            `json:"name"`
			Configs map[string]string `json:"configs"`
		} `json:"topics"`
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, topic := range t.Topics {
		out[topic.Name] = strings.Contains(topic.Configs["cleanup.policy"], "compact")
	}
	return out, nil
}

func linkTree(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func treeSize(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var n int64
	for _, e := range entries {
		st, err := e.Info()
		if err != nil {
			return 0, err
		}
		n += st.Size()
	}
	return n, nil
}
