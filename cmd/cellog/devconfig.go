package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"

	"github.com/cellog/cellog/internal/config"
)

// writeDevConfig writes the configuration of the running roles, with its
// passwords in files of their own.
func writeDevConfig(dataDir string, running *config.Config) error {
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return err
	}
	secrets := filepath.Join(dir, "passwords")
	if err := os.MkdirAll(secrets, 0o700); err != nil {
		return err
	}
	cfg := *running
	cfg.Clusters = append([]config.Cluster(nil), running.Clusters...)
	for i := range cfg.Clusters {
		a := &cfg.Clusters[i].Accounts
		for _, acc := range []*config.Account{&a.Worker, &a.Tailer, &a.Indexer, &a.Admin} {
			file := filepath.Join(secrets, acc.User)
			if err := writeAtomically(file, []byte(acc.Password.Reveal()+"\n")); err != nil {
				return err
			}
			*acc = config.Account{User: acc.User, PasswordFile: file}
		}
	}
	// The roles of a running dev have these addresses.
	cfg.Worker.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return err
	}
	if _, err := config.Parse(devConfigName, text); err != nil {
		return fmt.Errorf("the configuration that dev would print is wrong: %w", err)
	}
	return writeAtomically(filepath.Join(dir, devConfigName), text)
}

func printDevConfig(w io.Writer, dataDir string) error {
	text, err := os.ReadFile(filepath.Join(dataDir, devConfigName))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no %s in %s: start `cellog dev --data-dir %s` first, its servers have no addresses before", devConfigName, dataDir, dataDir)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "# The configuration of the cellog dev in %s. Every key is in docs/config.md.\n%s", dataDir, text)
	return err
}
