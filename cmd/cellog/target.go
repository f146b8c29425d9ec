package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/ingest/client"
	"github.com/cellog/cellog/internal/config"
)

// defaultDataDir is where `cellog dev` keeps its servers' data, and where the
// tools look for its ready file.
const defaultDataDir = "cellog-data"

// readyFileName is the ready file that `cellog dev` always writes into its
// data directory.
const readyFileName = "ready.json"

// devConfigName is the configuration that dev writes into its data directory.
const devConfigName = "cellog.yml"

// ready is the ready file of `cellog dev`: where everything is. Its shape is
// part of the command's contract.
type ready struct {
	HTTP     string         `json:"http"`
	Admin    string         `json:"admin"`
	Kafka    []string       `json:"kafka"`
	Clusters []readyCluster `json:"clusters"`
}

type readyCluster struct {
	Name  string      `json:"name"`
	Nodes []readyNode `json:"nodes"`
}

type readyNode struct {
	Name     string `json:"name"`
	Role     string `json:"role"`
	Addr     string `json:"addr"`
	User     string `json:"user"`
	Password string `json:"password"`
	PID      int    `json:"pid"`
}

// target says which cellog a tool speaks to: the flags, or a configuration
// file, or the ready file of a `cellog dev` on this machine.
type target struct {
	urls      []string
	kafka     []string
	config    string
	readyFile string
	timeout   time.Duration

	dev bool // load found a ready file
}

func (t *target) httpFlags(cmd *cobra.Command) {
	t.fileFlags(cmd)
	cmd.Flags().StringSliceVar(&t.urls, "url", nil, "base URLs of the workers (default $CELLOG_URL, or those of the files above)")
	cmd.Flags().DurationVar(&t.timeout, "timeout", 30*time.Second, "how long to go on retrying")
}

func (t *target) kafkaFlags(cmd *cobra.Command) {
	t.fileFlags(cmd)
	cmd.Flags().StringSliceVar(&t.kafka, "kafka", nil, "Kafka brokers HOST:PORT,… (default those of the files above)")
}

func (t *target) fileFlags(cmd *cobra.Command) {
	if cmd.Flags().Lookup("config") != nil {
		return
	}
	cmd.Flags().StringVar(&t.config, "config", "", "configuration file of a production cellog")
	cmd.Flags().StringVar(&t.readyFile, "ready-file", "", "ready file of a `cellog dev` (default $CELLOG_READY_FILE, or ./"+defaultDataDir+"/"+readyFileName+" if it is there)")
}

// load reads the configuration, from --config or made up from a ready file.
// nil means that neither is there.
func (t *target) load() (*config.Config, *ready, error) {
	if t.config != "" {
		cfg, err := config.Load(t.config, os.Getenv)
		return cfg, nil, err
	}
	path, asked := t.readyFile, true
	if path == "" {
		path = os.Getenv("CELLOG_READY_FILE")
	}
	if path == "" {
		path, asked = filepath.Join(defaultDataDir, readyFileName), false
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !asked {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("ready file: %w", err)
	}
	var r ready
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, nil, fmt.Errorf("ready file %s: %w", path, err)
	}
	t.dev = true
	// Beside the ready file in its own data directory dev writes a whole
	// configuration, with an account for each role.
	whole := filepath.Join(filepath.Dir(path), devConfigName)
	if _, err := os.Stat(whole); err == nil {
		cfg, err := config.Load(whole, os.Getenv)
		return cfg, &r, err
	}
	return r.config(), &r, nil
}

// config turns a ready file into the configuration of a tool: one account for
// everything, as `cellog dev` has it.
func (r *ready) config() *config.Config {
	cfg := config.Default()
	cfg.Kafka.Brokers = r.Kafka
	for _, c := range r.Clusters {
		cl := config.Cluster{Name: c.Name}
		for _, n := range c.Nodes {
			cl.Nodes = append(cl.Nodes, config.Node{Name: n.Name, Addr: n.Addr})
			a := config.Account{User: n.User, Password: config.NewSecret(n.Password)}
			cl.Accounts = config.Accounts{Worker: a, Tailer: a, Indexer: a, Admin: a, Replica: a}
		}
		cfg.Clusters = append(cfg.Clusters, cl)
	}
	return &cfg
}

// mustLoad is load for tools that need servers.
func (t *target) mustLoad() (*config.Config, error) {
	cfg, _, err := t.load()
	if err == nil && cfg == nil {
		err = usageError("which cellog? give --config FILE, or --ready-file FILE of a running `cellog dev` (there is no ./%s/%s here)", defaultDataDir, readyFileName)
	}
	return cfg, err
}

// client makes the HTTP client.
func (t *target) client() (*client.Client, error) {
	if t.timeout <= 0 {
		return nil, usageError("--timeout %v: want more than 0", t.timeout)
	}
	urls := t.urls
	if len(urls) == 0 && os.Getenv("CELLOG_URL") != "" {
		urls = strings.Split(os.Getenv("CELLOG_URL"), ",")
	}
	if len(urls) == 0 {
		cfg, r, err := t.load()
		switch {
		case err != nil:
			return nil, err
		case r != nil:
			urls = []string{r.HTTP}
		case cfg != nil:
			urls = []string{(&url.URL{Scheme: "http", Host: cfg.Worker.Listen}).String()}
		default:
			urls = []string{"http://" + config.Default().Worker.Listen}
		}
	}
	c, err := client.New(client.Config{URLs: urls, Budget: t.timeout})
	if err != nil {
		return nil, exitError{exitUsage, err}
	}
	return c, nil
}

// brokers are the Kafka brokers and the topics' prefix.
func (t *target) brokers() ([]string, string, error) {
	for _, b := range t.kafka {
		if err := config.CheckAddr(b); err != nil {
			return nil, "", usageError("--kafka %w", err)
		}
	}
	cfg, _, err := t.load()
	if err != nil {
		return nil, "", err
	}
	prefix := ""
	brokers := t.kafka
	if cfg != nil {
		prefix = cfg.Kafka.Prefix
		if len(brokers) == 0 {
			brokers = cfg.Kafka.Brokers
		}
	}
	if len(brokers) == 0 {
		return nil, "", usageError("which brokers? give --kafka HOST:PORT, --config FILE, or --ready-file FILE of a running `cellog dev`")
	}
	return brokers, prefix, nil
}
