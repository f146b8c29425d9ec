package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/schemas/record"
)

// problem is a mistake of meaning, with the YAML path of its value.
type problem struct{ path, text string }

var (
	clusterName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	nodeName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	topicPrefix = regexp.MustCompile(`^[A-Za-z0-9._-]{0,100}$`)
)

type checker struct{ problems []problem }

func (c *checker) bad(path, format string, args ...any) {
	c.problems = append(c.problems, problem{"$." + path, fmt.Sprintf(format, args...)})
}

func (c *Config) check() []problem {
	var k checker
	k.kafka(&c.Kafka)
	k.clusters(c.Clusters)
	k.datastores(c.Datastores, len(c.Clusters))
	k.addr("worker.listen", c.Worker.Listen, true)
	k.baseURL("worker.advertise", c.Worker.Advertise)
	k.number("worker.copies", int64(c.Worker.Copies), 1, 16)
	if n := len(c.Clusters); n > 1 && c.Worker.Copies >= n {
		k.bad("worker.copies", "%d copies on other clusters want %d clusters, there are %d: add clusters, or say %d", c.Worker.Copies, c.Worker.Copies+1, n, n-1)
	}
	k.duration("worker.shutdown_grace", c.Worker.ShutdownGrace, 0, time.Hour)
	k.duration("worker.put_timeout", c.Worker.PutTimeout, time.Millisecond, time.Hour)
	k.duration("worker.read_timeout", c.Worker.ReadTimeout, time.Millisecond, time.Hour)
	k.limits(&c.Limits)
	for i, name := range c.Tailer.Clusters {
		if _, err := c.FindCluster(name); err != nil {
			k.bad(fmt.Sprintf("tailer.clusters[%d]", i), "%v", err)
		}
	}
	k.duration("tailer.heartbeat_interval", c.Tailer.HeartbeatInterval, 10*time.Millisecond, time.Minute)
	k.number("tailer.transaction_cells", int64(c.Tailer.TransactionCells), 1, 1<<20)
	k.number("tailer.fill_shards", int64(c.Tailer.FillShards), 1, 64)
	k.duration("tailer.fill_max_lag", c.Tailer.FillMaxLag, 0, 24*time.Hour)
	k.duration("tailer.auto_promote", c.Tailer.AutoPromote, 0, 24*time.Hour)
	for i := range c.Clusters {
		if c.Tailer.AutoPromote > 0 && c.Clusters[i].Accounts.Admin.User == "" {
			k.bad("tailer.auto_promote", "cluster %s has no accounts.admin, which promotes", c.Clusters[i].Name)
		}
	}
	k.addr("admin.listen", c.Admin.Listen, true)
	k.duration("admin.max_lag", c.Admin.MaxLag, 10*time.Millisecond, 24*time.Hour)
	k.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("log.format", c.Log.Format, "text", "json")
	return k.problems
}

func (k *checker) kafka(c *Kafka) {
	if len(c.Brokers) == 0 {
		k.bad("kafka.brokers", "want at least one HOST:PORT")
	}
	for i, b := range c.Brokers {
		k.addr(fmt.Sprintf("kafka.brokers[%d]", i), b, false)
	}
	if err := CheckPrefix(c.Prefix); err != nil {
		k.bad("kafka.prefix", "%v", err)
	}
}

func (k *checker) clusters(clusters []Cluster) {
	if len(clusters) == 0 {
		k.bad("clusters", "want at least one storage cluster")
	}
	names, nodes, addrs := map[string]bool{}, map[string]bool{}, map[string]string{}
	for i := range clusters {
		c := &clusters[i]
		at := fmt.Sprintf("clusters[%d]", i)
		if !clusterName.MatchString(c.Name) {
			k.bad(at+".name", "%.80q: want a lower-case letter and up to 62 lower-case letters, digits or hyphens", c.Name)
		} else if names[c.Name] {
			k.bad(at+".name", "there is already a cluster %q", c.Name)
		}
		names[c.Name] = true
		if len(c.Nodes) == 0 {
			k.bad(at+".nodes", "want at least one node")
		}
		for j, n := range c.Nodes {
			at := fmt.Sprintf("%s.nodes[%d]", at, j)
			if !nodeName.MatchString(n.Name) {
				k.bad(at+".name", "%.80q: want up to 63 letters, digits, dots, underscores or hyphens", n.Name)
			} else if nodes[n.Name] {
				k.bad(at+".name", "there is already a node %q", n.Name)
			}
			nodes[n.Name] = true
			if !strings.HasPrefix(n.Addr, "/") {
				k.addr(at+".addr", n.Addr, false)
			}
			if other := addrs[n.Addr]; other != "" {
				k.bad(at+".addr", "node %q has the same address", other)
			}
			addrs[n.Addr] = n.Name
		}
		for _, a := range c.Accounts.all() {
			at := at + ".accounts." + a.name
			if a.account.PasswordFile != "" && a.account.PasswordEnv != "" {
				k.bad(at+".password_env", "password_file is set too: want one of the two")
			}
			if a.account.User == "" && (a.account.PasswordFile != "" || a.account.PasswordEnv != "") {
				k.bad(at, "a password without a user")
			}
		}
	}
}

func (k *checker) datastores(all []Datastore, clusters int) {
	seen := map[string]bool{}
	for i, d := range all {
		at := fmt.Sprintf("datastores[%d]", i)
		if err := cellog.CheckDatastore(d.Name); err != nil {
			k.bad(at+".name", "%v", err)
		} else if seen[d.Name] {
			k.bad(at+".name", "there is already a datastore %q", d.Name)
		}
		seen[d.Name] = true
		if d.Ack != "" {
			k.oneOf(at+".ack", d.Ack, "primary", "copy", "final")
		}
		for _, column := range slices.Sorted(maps.Keys(d.Values)) {
			if err := cellog.CheckColumn(column); err != nil && column != record.OtherColumns {
				k.bad(at+".values", "%v; \"*\" is all columns that are not named", err)
			}
			switch form := d.Values[column]; form {
			case record.JSON, record.MessagePack, record.Stored:
			default:
				k.bad(at+".values", "column %.64q: %.40q: want json, msgpack, stored", column, form)
			}
		}
		if err := CheckAck(d.Ack, clusters); err != nil {
			k.bad(at+".ack", "%v", err)
		}
	}
}

func (k *checker) limits(c *Limits) {
	k.size("limits.body_bytes", c.BodyBytes, 1, body.MaxBytes)
	k.number("limits.json_depth", int64(c.JSONDepth), 1, 10000)
	k.number("limits.batch_cells", int64(c.BatchCells), 1, 1000000)
	k.size("limits.batch_bytes", c.BatchBytes, 1, 1<<30)
	k.size("limits.queue_bytes", c.QueueBytes, 1, 1<<40)
	if c.QueueBytes < c.BodyBytes {
		k.bad("limits.queue_bytes", "%v is less than limits.body_bytes %v: such a cell could never be put", c.QueueBytes, c.BodyBytes)
	}
}

// CheckAck returns an error for an ack that no put could ever have with so many
// clusters.
func CheckAck(ack string, clusters int) error {
	if ack == "copy" && clusters == 1 {
		return errors.New("copy wants another cluster to hold copies, there is one alone: add clusters, or say primary or final")
	}
	return nil
}

// CheckPrefix returns an error unless prefix may stand before topic names.
func CheckPrefix(prefix string) error {
	if !topicPrefix.MatchString(prefix) {
		return fmt.Errorf("%.40q: want up to 100 letters, digits, dots, underscores or hyphens", prefix)
	}
	return nil
}

// CheckAddr returns an error unless v is the HOST:PORT of a server.
func CheckAddr(v string) error { return checkAddr(v, false) }

// CheckListen returns an error unless v is a HOST:PORT to listen on; the host
// may be missing, and port 0 means a free one.
func CheckListen(v string) error { return checkAddr(v, true) }

func checkAddr(v string, emptyHost bool) error {
	host, port, err := net.SplitHostPort(v)
	n, perr := strconv.Atoi(port)
	if err != nil || perr != nil || n < 0 || n > 65535 || !emptyHost && (host == "" || n == 0) {
		return fmt.Errorf("%.80q: want HOST:PORT", v)
	}
	return nil
}

// baseURL checks a URL that paths are appended to; empty is fine.
func (k *checker) baseURL(path, v string) {
	if v == "" {
		return
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		strings.HasSuffix(v, "/") || len(v) > 255 {
		k.bad(path, "%.80q: want http://HOST:PORT, up to 255 characters", v)
	}
}

func (k *checker) addr(path, v string, emptyHost bool) {
	if err := checkAddr(v, emptyHost); err != nil {
		k.bad(path, "%v", err)
	}
}

func (k *checker) duration(path string, v, low, high time.Duration) {
	if v < low || v > high {
		k.bad(path, "%v: want %v to %v", v, low, high)
	}
}

func (k *checker) number(path string, v, low, high int64) {
	if v < low || v > high {
		k.bad(path, "%d: want %d to %d", v, low, high)
	}
}

func (k *checker) size(path string, v, low, high Bytes) {
	if v < low || v > high {
		k.bad(path, "%v: want %v to %v", v, low, high)
	}
}

func (k *checker) oneOf(path, v string, want ...string) {
	for _, w := range want {
		if v == w {
			return
		}
	}
	k.bad(path, "%.40q: want %s", v, strings.Join(want, ", "))
}
