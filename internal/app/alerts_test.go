package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/triggers"
)

// rule is one of deploy/alerts.yml.
type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// exported are the names of the metrics of a worker, a tailer, an indexer and a
// process with triggers.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	cfg := config.Default()
	cfg.Indexer.Schemas = t.TempDir()
	if err := os.WriteFile(filepath.Join(cfg.Indexer.Schemas, "driver.yml"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
	for _, c := range []string{"c1", "c2"} {
		cfg.Clusters = append(cfg.Clusters, config.Cluster{Name: c, Accounts: config.Accounts{Worker: config.Account{User: "w"}, Tailer: config.Account{User: "t"}, Indexer: config.Account{User: "i"}}, Nodes: []config.Node{{Name: c + "a", Addr: "127.0.0.1:1"}}})
	}
	names := registry{names: map[string]bool{}}
	w, err := NewWorker(&cfg, Env{Registry: &names})
	if err != nil {
		t.Fatal(err)
	}
	tl, err := NewTailers(&cfg, Env{Registry: &names})
	if err != nil {
		t.Fatal(err)
	}
	x, err := NewIndexer(&cfg, Env{Registry: &names})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Role{w, tl, x} {
		if err := r.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	rt, err := triggers.New(triggers.Config{Brokers: cfg.Kafka.Brokers, Registerer: &names, Drain: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.On("trips", "BASE", "t", func(context.Context, cellog.Cell) error { return nil }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- rt.Run(ctx) }()
	waitFor(t, time.Minute, func() error { // no broker is there, and none is needed for this
		if !names.has("cellog_feed_stopped_partitions") {
			return errors.New("the trigger's metrics are not registered")
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return names.names
}

// registry keeps the names of what is registered.
type registry struct {
	mu    sync.Mutex
	names map[string]bool
}

func (r *registry) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names[name]
}

var fqName = regexp.MustCompile(`fqName: "([a-z_]+)"`)

func (r *registry) Register(c prometheus.Collector) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		r.names[fqName.FindStringSubmatch(d.String())[1]] = true
	}
	return nil
}

func (r *registry) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		_ = r.Register(c) // it never fails
	}
}

func (r *registry) Unregister(prometheus.Collector) bool { return false }

// Every rule can be read, uses metrics that are there, and says what to do.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../deploy/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	have := exported(t)
	metric, seen := regexp.MustCompile(`cellog_[a-z_]+`), map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if seen[r.Alert] || !regexp.MustCompile(`^Cellog[A-Za-z]+$`).MatchString(r.Alert) {
				t.Errorf("alert %q: is there twice, or is no name", r.Alert)
			}
			seen[r.Alert] = true
			used := metric.FindAllString(r.Expr, -1)
			if len(used) == 0 {
				t.Errorf("%s: it uses no metric: %s", r.Alert, r.Expr)
			}
			for _, m := range used {
				if !have[m] {
					t.Errorf("%s: nobody exports %s", r.Alert, m)
				}
			}
			if strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") || !regexp.MustCompile(`^[0-9]+[ms]$`).MatchString(r.For) {
				t.Errorf("%s: %q for %q", r.Alert, r.Expr, r.For)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			for _, a := range []string{"summary", "description", "run"} {
				if r.Annotations[a] == "" {
					t.Errorf("%s: no %s", r.Alert, a)
				}
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("%d rules were read", len(seen))
	}
}
