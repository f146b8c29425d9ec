package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/deploy/local"
	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/mysqlserver"
	"github.com/cellog/cellog/internal/obs"
	"github.com/cellog/cellog/storage"
)

// devStopTimeout bounds the stop of all of dev.
const devStopTimeout = 30 * time.Second

// devFlags are the flags of dev, which demo shares.
type devFlags struct {
	dataDir, mysql, mysqld, kafka, prefix, datastore, listen, admin, schemas, readyFile, logLevel string
	shards, clusters                                                                              int
	minions                                                                                       []int
	ack                                                                                           string
	merged, kafkaSync                                                                             bool
	autoPromote                                                                                   time.Duration

	// given says whether a flag was given: numbers that were not are those of
	// the data directory.
	given func(flag string) bool

	mu    sync.Mutex // guards ready and is held while the ready files change
	ready *app.Dev   // while there are ready files
}

func (d *devFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	d.given = f.Changed
	f.StringVar(&d.dataDir, "data-dir", defaultDataDir, "where the servers and the broker keep their data")
	f.IntVar(&d.shards, "shards", app.DefaultShards, "shards of a new datastore, fixed when it is made")
	f.IntVar(&d.clusters, "clusters", 2, "storage clusters of a new data directory")
	f.IntSliceVar(&d.minions, "minions", []int{1}, "minions of each cluster's master, in a new data directory; or one number for each cluster: 2,1")
	f.StringVar(&d.mysql, "mysql", "auto", "flavour of the servers: auto, mariadb or mysql")
	f.StringVar(&d.mysqld, "mysqld", "", "path of the server's binary (default: looked for)")
	f.StringVar(&d.kafka, "kafka", "embedded", "embedded, or HOST:PORT,… of brokers that run already")
	f.BoolVar(&d.kafkaSync, "kafka-sync", false, "let the embedded broker sync each batch to disk, to survive power cuts too; slow")
	f.StringVar(&d.prefix, "kafka-prefix", "", "prefix of all topics, groups and transactional ids")
	f.StringVar(&d.datastore, "datastore", "trips", "the datastore to make")
	f.StringVar(&d.ack, "ack", "", "how safe a cell is when its put is answered: primary, copy or final (default: copy, with one cluster primary)")
	f.DurationVar(&d.autoPromote, "auto-promote", 5*time.Second, "after how long without its master another node of a cluster becomes the master; 0: never")
	f.StringVar(&d.listen, "listen", config.Default().Worker.Listen, "address of the HTTP API")
	f.StringVar(&d.admin, "admin-listen", config.Default().Admin.Listen, "address of /livez, /readyz and /metrics")
	f.StringVar(&d.schemas, "schemas", "", "directory of index definitions, *.yml")
	f.BoolVar(&d.merged, "merged-topic", false, "also publish every column to DATASTORE._all")
	f.StringVar(&d.readyFile, "ready-file", "", "write where everything is to this file when everything serves")
	f.StringVar(&d.logLevel, "log-level", "info", "debug, info, warn or error")
}

func (d *devFlags) check() error {
	if err := errors.Join(cellog.CheckDatastore(d.datastore), cellog.CheckShards(d.shards)); err != nil {
		return exitError{exitUsage, err}
	}
	if _, err := storage.ParseAck(d.ack); d.ack != "" && err != nil {
		return usageError("--%v", err)
	}
	switch {
	case d.clusters < 1 || d.clusters > 16:
		return usageError("--clusters %d: want 1 to 16", d.clusters)
	case slices.ContainsFunc(d.minions, func(n int) bool { return n < 0 || n > 16 }):
		return usageError("--minions %v: want 0 to 16", d.minions)
	case len(d.minions) != 1 && d.given("clusters") && len(d.minions) != d.clusters:
		return usageError("--minions %v: want one number, or one for each of the %d clusters", d.minions, d.clusters)
	case d.mysql != "auto" && d.mysql != "mariadb" && d.mysql != "mysql":
		return usageError("--mysql %q: want auto, mariadb or mysql", d.mysql)
	case !slices.Contains([]string{"debug", "info", "warn", "error"}, d.logLevel):
		return usageError("--log-level %q: want debug, info, warn or error", d.logLevel)
	case d.dataDir == "":
		return usageError("--data-dir is empty")
	}
	// Without --clusters the data directory tells how many there are, see StartDev.
	if err := config.CheckAck(d.ack, d.clusters); err != nil {
		return usageError("--ack %w (--clusters 2)", err)
	}
	if err := config.CheckPrefix(d.prefix); err != nil {
		return usageError("--kafka-prefix %w", err)
	}
	if d.kafka != "embedded" {
		for b := range strings.SplitSeq(d.kafka, ",") {
			if err := config.CheckAddr(b); err != nil {
				return usageError("--kafka %w", err)
			}
		}
	}
	for flag, addr := range map[string]string{"--listen": d.listen, "--admin-listen": d.admin} {
		if err := config.CheckListen(addr); err != nil {
			return usageError("%s %w", flag, err)
		}
	}
	if dir := filepath.Dir(d.readyFile); d.readyFile != "" {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return usageError("--ready-file %s: there is no directory %s", d.readyFile, dir)
		}
	}
	if d.schemas != "" {
		abs, err := filepath.Abs(d.schemas)
		if err != nil {
			return err
		}
		if info, err := os.Stat(abs); err != nil || !info.IsDir() {
			return usageError("--schemas %s: want a directory of index definitions", d.schemas)
		}
		d.schemas = abs
	}
	return nil
}

func (d *devFlags) config(stderr io.Writer) app.DevConfig {
	mysqld := d.mysqld
	if mysqld == "" {
		mysqld = os.Getenv("CELLOG_MYSQLD")
	}
	var brokers []string
	if d.kafka != "embedded" {
		brokers = strings.Split(d.kafka, ",")
	}
	var minions []int
	if d.given("minions") {
		minions = d.minions
	}
	clusters, shards := d.clusters, d.shards
	if !d.given("clusters") {
		clusters = 0
	}
	if !d.given("shards") {
		shards = 0
	}
	log := obs.NewLogger(stderr, obs.LogConfig{Level: d.logLevel})
	return app.DevConfig{
		Local:       local.Config{DataDir: d.dataDir, Clusters: clusters, Minions: minions, Flavour: mysqlserver.Flavour(d.mysql), Binary: mysqld, KafkaBrokers: brokers, KafkaSync: d.kafkaSync, Restarted: func() { d.rewriteReady(log) }, Logger: log},
		KafkaPrefix: d.prefix, Datastore: d.datastore, Ack: d.ack, AutoPromote: d.autoPromote, Promoted: func(app.Promoted) { d.rewriteReady(log) }, Shards: shards, Listen: d.listen, AdminListen: d.admin, Schemas: d.schemas, MergedTopic: d.merged,
		// Files of an earlier run speak of servers that are gone.
		Owned: d.removeReady,
		Env:   app.Env{Log: log},
	}
}

func newDev() *cobra.Command {
	var d devFlags
	var printConfig bool
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run all of cellog on this machine, for development and trials",
		Long: `Run everything in one process: clusters of private MySQL or MariaDB servers as child processes, an embedded Kafka
broker, a worker, a tailer per cluster and an indexer. Data stays in --data-dir and survives a restart and a crash.
Ctrl-C stops everything in order.

When everything serves, where it is is written to DATA-DIR/` + readyFileName + `, which the other commands read by themselves, to
--ready-file, and to standard output. --print-config prints the configuration with which the same roles run by
themselves against a running dev's servers; passwords are in files below DATA-DIR. Where no dev has run it prints an
example.`,
		Example: `  cellog dev
  cellog dev --data-dir /tmp/cellog --shards 4 --clusters 1 --schemas ./indexes --ready-file ready.json
  cellog dev --print-config > cellog.yml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.check(); err != nil {
				return err
			}
			if printConfig {
				return printDevConfig(cmd.OutOrStdout(), &d)
			}
			return runDev(cmd.Context(), cmd, &d)
		},
	}
	d.add(cmd)
	cmd.Flags().BoolVar(&printConfig, "print-config", false, "print the configuration of the dev in --data-dir, or an example, and exit")
	return cmd
}

func runDev(ctx context.Context, cmd *cobra.Command, d *devFlags) error {
	cfg := d.config(cmd.ErrOrStderr())
	dev, err := startDev(ctx, d, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return nil // interrupted while it started; everything is stopped
		}
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "HTTP API  %s\nadmin     %s/readyz\nKafka     %s\nPress Ctrl-C to stop.\n", dev.URL(), dev.Admin(), strings.Join(dev.Config().Kafka.Brokers, ","))
	select {
	case <-ctx.Done():
		cfg.Env.Log.Info("stopping")
	case err = <-dev.Failed():
	}
	return errors.Join(err, stopDev(d, dev))
}

// startDev starts dev and writes the ready files.
func startDev(ctx context.Context, d *devFlags, cfg app.DevConfig) (*app.Dev, error) {
	dev, err := app.StartDev(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := d.writeReady(dev); err != nil {
		return nil, errors.Join(err, stopDev(d, dev))
	}
	return dev, nil
}

// rewriteReady follows servers that came back with other pids.
func (d *devFlags) rewriteReady(log *slog.Logger) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ready == nil {
		return
	}
	if err := d.writeFiles(d.ready); err != nil {
		log.Error("the ready file still has the pid of a server that is gone", "error", err)
	}
}

func stopDev(d *devFlags, dev *app.Dev) error {
	ctx, cancel := context.WithTimeout(context.Background(), devStopTimeout)
	defer cancel()
	return errors.Join(d.removeReady(), dev.Stop(ctx))
}

func (d *devFlags) readyFiles() []string {
	files := []string{filepath.Join(d.dataDir, readyFileName)}
	if d.readyFile != "" {
		files = append(files, d.readyFile)
	}
	return files
}

func (d *devFlags) removeReady() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = nil
	for _, f := range d.readyFiles() {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (d *devFlags) writeReady(dev *app.Dev) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = dev
	return d.writeFiles(dev)
}

func (d *devFlags) writeFiles(dev *app.Dev) error {
	r := ready{HTTP: dev.URL(), Admin: dev.Admin(), Kafka: dev.Config().Kafka.Brokers}
	admin := dev.Config().Clusters[0].Accounts.Admin
	for _, c := range dev.Local().Clusters() {
		rc := readyCluster{Name: c.Name}
		for _, n := range c.Nodes {
			rc.Nodes = append(rc.Nodes, readyNode{Name: n.Name, Role: n.Role, Addr: n.Addr, User: admin.User, Password: admin.Password.Reveal(), PID: n.PID})
		}
		r.Clusters = append(r.Clusters, rc)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := writeDevConfig(d.dataDir, dev.Config()); err != nil {
		return err
	}
	for _, f := range d.readyFiles() {
		if err := writeAtomically(f, append(text, '\n')); err != nil {
			return fmt.Errorf("ready file: %w", err)
		}
	}
	return nil
}

// writeAtomically writes a file that holds passwords: whoever sees it sees it
// whole.
func writeAtomically(path string, text []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
