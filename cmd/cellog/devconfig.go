package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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

// printDevConfig prints the configuration of the dev in a data directory, or
// an example where there was never one.
func printDevConfig(w io.Writer, d *devFlags) error {
	text, err := os.ReadFile(filepath.Join(d.dataDir, devConfigName))
	head := "# The configuration of the cellog dev in " + d.dataDir + ". Every key is in docs/config.md.\n"
	if errors.Is(err, fs.ErrNotExist) {
		head = "# An example: no cellog dev has run in " + d.dataDir + ". Put in your own addresses; every key is in docs/config.md.\n"
		text, err = exampleConfig(d)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s", head, text)
	return err
}

// exampleConfig is the configuration of servers that an operator has set up
// with the usual ports and accounts, as many as the flags say.
func exampleConfig(d *devFlags) ([]byte, error) {
	cfg := config.Default()
	cfg.Kafka = config.Kafka{Brokers: []string{"127.0.0.1:9092"}, Prefix: d.prefix}
	if d.kafka != "embedded" {
		cfg.Kafka.Brokers = strings.Split(d.kafka, ",")
	}
	account := func(role string) config.Account {
		return config.Account{User: "cellog_" + role, PasswordEnv: "CELLOG_" + strings.ToUpper(role) + "_PASSWORD"}
	}
	port := 3306
	for i := range d.clusters {
		c := config.Cluster{Name: fmt.Sprintf("c%d", i+1), Accounts: config.Accounts{
			Worker: account("worker"), Tailer: account("tailer"), Indexer: account("indexer"), Admin: account("admin")}}
		for j := range d.minions[min(i, len(d.minions)-1)] + 1 {
			c.Nodes = append(c.Nodes, config.Node{Name: c.Name + string(rune('a'+j)), Addr: fmt.Sprintf("127.0.0.1:%d", port)})
			port++
		}
		cfg.Clusters = append(cfg.Clusters, c)
	}
	cfg.Datastores = []config.Datastore{{Name: d.datastore, Ack: "primary", MergedTopic: d.merged}}
	cfg.Worker.Listen, cfg.Admin.Listen, cfg.Indexer.Schemas = d.listen, d.admin, d.schemas
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	if _, err := config.Parse(devConfigName, text); err != nil {
		return nil, exitError{exitUsage, err} // an address in a flag
	}
	return text, nil
}
