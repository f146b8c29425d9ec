package devbroker

import (
	"encoding/binary"
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
	for _, p := range parts {
		for producer, epoch := range p.open {
			t := txn{producer, epoch}
			if err := p.end(t, committed[t]); err != nil {
				return err
			}
			log.Info("ended a transaction that a crash left open", "partition", filepath.Base(p.dir),
				"producer", producer, "epoch", epoch, "commit", committed[t])
		}
	}
	return nil
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
