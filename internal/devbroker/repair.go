package devbroker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// repair makes the files of a broker that crashed say the same everywhere. It
// may itself be cut off at any point and run again.
func repair(dir string, log *slog.Logger) error {
	// kfake leaves this file only when it stopped in order with transactions
	// or groups to go on with, and removes it when it has loaded all.
	if _, err := os.Stat(filepath.Join(dir, "session_state.json")); err == nil {
		return nil
	}
	for _, name := range []string{"pids.log", "groups.log"} {
		if err := trimLog(filepath.Join(dir, name), log); err != nil {
			return err
		}
	}
	dirs, err := partitionDirs(dir)
	if err != nil {
		return err
	}
	var parts []*partition
	committed := map[txn]bool{}
	for _, d := range dirs {
		p, err := scan(d)
		if err != nil {
			return err
		}
		if p.cut > 0 {
			log.Warn("cut off a half-written batch", "partition", filepath.Base(d), "bytes", p.cut)
		}
		if len(p.open) > 0 {
			parts = append(parts, p)
		}
		for _, t := range p.committed {
			committed[t] = true
		}
	}
	ended := map[txn]bool{}
	for _, p := range parts {
		for producer, epoch := range p.open {
			t := txn{producer, epoch}
			ended[t] = true
			if err := p.end(t, committed[t]); err != nil {
				return err
			}
			log.Info("ended a transaction that a crash left open", "partition", filepath.Base(p.dir),
				"producer", producer, "epoch", epoch, "commit", committed[t])
		}
	}
	return tellProducers(filepath.Join(dir, "pids.log"), ended, committed)
}

// producerEntry is what repair knows of an entry of kfake's pids.log.
type producerEntry struct {
	Type     string `json:"type"`
	Producer int64  `json:"pid"`
	Epoch    int16  `json:"epoch"`
	Commit   *bool  `json:"commit,omitempty"`
}

// tellProducers notes in pids.log how transactions ended, under the producer's
// next epoch. A producer that outlived the broker would otherwise go on in a
// transaction that was aborted, and be told that its commit succeeded: kfake
// takes a commit without a transaction for the last one repeated.
func tellProducers(path string, ended, committed map[txn]bool) error {
	if len(ended) == 0 {
		return nil
	}
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	epochs := map[int64]int16{}
	for len(raw) >= 8 {
		n := int(binary.LittleEndian.Uint32(raw))
		var e producerEntry
		if err := json.Unmarshal(raw[10:8+n], &e); err != nil { // trimLog has checked the lengths
			return err
		}
		epochs[e.Producer] = e.Epoch
		raw = raw[8+n:]
	}
	var out []byte
	for t := range ended {
		if last, known := epochs[t.producer]; known && last > t.epoch {
			continue // it was fenced, or went on
		}
		commit := committed[t]
		text, err := json.Marshal(producerEntry{"endtx", t.producer, t.epoch + 1, &commit})
		if err != nil {
			return err
		}
		body := append([]byte{1, 0}, text...) // version 1
		out = binary.LittleEndian.AppendUint32(out, uint32(len(body)))
		out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(body, castagnoli))
		out = append(out, body...)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(out)
	return errors.Join(err, f.Sync(), f.Close())
}

func partitionDirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "partitions"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(dir, "partitions", e.Name()))
		}
	}
	return out, nil
}

// trimLog cuts a half-written last entry off one of kfake's logs: kfake would
// append behind it and not find what follows. An entry is its length (4 bytes,
// little-endian), the CRC-32C of what follows (4), a version (2), and data.
func trimLog(path string, log *slog.Logger) error {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pos := 0
	for pos+8 <= len(raw) {
		n := int(binary.LittleEndian.Uint32(raw[pos:]))
		if n < 2 || n > len(raw)-pos-8 || crc32.Checksum(raw[pos+8:pos+8+n], castagnoli) != binary.LittleEndian.Uint32(raw[pos+4:]) {
			break
		}
		pos += 8 + n
	}
	if pos == len(raw) {
		return nil
	}
	log.Warn("cut off a half-written entry", "file", filepath.Base(path), "bytes", len(raw)-pos)
	return os.Truncate(path, int64(pos))
}
