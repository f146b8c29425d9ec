package config

import (
	"time"

	"github.com/cellog/cellog/schemas/record"
)

// Config is a whole configuration file. Its zero value is not usable; Default
// gives the values of everything that a file leaves out.
type Config struct {
	Kafka Kafka `yaml:"kafka"`
	// Clusters seed the list of MySQL servers. What is where is asked of the
	// servers themselves.
	Clusters []Cluster `yaml:"clusters"`
	// Datastores hold options of datastores; one that is not listed has the
	// defaults. Which datastores exist is kept in cellog_meta.datastores.
	Datastores []Datastore `yaml:"datastores"`
	Worker     Worker      `yaml:"worker"`
	Limits     Limits      `yaml:"limits"`
	Tailer     Tailer      `yaml:"tailer"`
	Indexer    Indexer     `yaml:"indexer"`
	Admin      Admin       `yaml:"admin"`
	Log        Log         `yaml:"log"`
}

// Kafka says where the stream is.
type Kafka struct {
	// Brokers are the seed brokers, HOST:PORT. At least one.
	Brokers []string `yaml:"brokers"`
	// Prefix stands before every topic's name. Default empty.
	Prefix string `yaml:"prefix"`
}

// Cluster is one storage cluster: a master and its minions. Which node is
// master MySQL itself says.
type Cluster struct {
	// Name is the cluster's name, [a-z][a-z0-9-]{0,62}. Required.
	Name string `yaml:"name"`
	// Nodes are the cluster's servers. At least one.
	Nodes []Node `yaml:"nodes"`
	// Accounts are those that cellog's parts use, the same on every node.
	Accounts Accounts `yaml:"accounts"`
}

// Node is one MySQL server.
type Node struct {
	// Name is the node's name, unique in the file. Required.
	Name string `yaml:"name"`
	// Addr is HOST:PORT or the path of a unix socket. Required.
	Addr string `yaml:"addr"`
}

// Accounts are MySQL accounts by what they are for. A role needs only its own.
type Accounts struct {
	// Worker writes and reads cells; it cannot UPDATE or DELETE in entity.
	Worker Account `yaml:"worker"`
	// Tailer reads the binlog and entity, and writes heartbeats.
	Tailer Account `yaml:"tailer"`
	// Indexer writes index tables.
	Indexer Account `yaml:"indexer"`
	// Replica is what a minion follows its master with, after a promotion.
	// Without a user, whoever runs the servers re-points them.
	Replica Account `yaml:"replica"`
	// Admin makes databases and inspects servers (datastore, doctor, verify).
	Admin Account `yaml:"admin"`
}

// Account is a user and where its password comes from; at most one of the two
// sources may be set, and none means an empty password.
type Account struct {
	User string `yaml:"user"`
	// PasswordFile is a file that holds the password; one newline at its end
	// is not part of it. A relative path is relative to the configuration.
	PasswordFile string `yaml:"password_file"`
	// PasswordEnv names the environment variable that holds the password.
	PasswordEnv string `yaml:"password_env"`

	// Password is what Load found there.
	Password Secret `yaml:"-"`
}

// Datastore holds the options of one datastore.
type Datastore struct {
	Name string `yaml:"name"`
	// Ack says how safe a cell is when its put is answered: primary (on its
	// master's disk), copy (also on another cluster's master, or in Kafka) or
	// final (in Kafka). Default copy, but primary with one cluster alone.
	Ack string `yaml:"ack"`
	// MergedTopic also publishes every column to <datastore>._all. Default
	// false.
	MergedTopic bool `yaml:"merged_topic"`
	// Values says what the values of the columns' records are, by column, or
	// "*" for all that are not named: json, msgpack or stored. Default json.
	Values record.Forms `yaml:"values"`
}

// Worker is the HTTP node.
type Worker struct {
	// Listen is the address of the HTTP API. Default 127.0.0.1:8080.
	Listen string `yaml:"listen"`
	// Advertise is the base URL under which other workers reach this one, such
	// as http://10.0.0.7:8080. Default: http:// and the address that is
	// listened on, or the host's name where that is all addresses.
	Advertise string `yaml:"advertise"`
	// NoForwarding has this worker write all cells itself, instead of sending
	// them to the home worker of their shard, and take none. Default false.
	NoForwarding bool `yaml:"no_forwarding"`
	// NoBuffering has puts fail, with 503 or 504, while their shard's primary
	// gives no answer, instead of keeping them on two machines of other
	// clusters and answering 202. Default false.
	NoBuffering bool `yaml:"no_buffering"`
	// Copies is how many other clusters' masters hold a copy of a cell until
	// it is final, where ack is copy. Default 1.
	Copies int `yaml:"copies"`
	// ShutdownGrace is how long a stop waits for requests in flight. Default
	// 10s.
	ShutdownGrace time.Duration `yaml:"shutdown_grace"`
	// PutTimeout is how long a put may take before it is answered with 504.
	// Default 5s.
	PutTimeout time.Duration `yaml:"put_timeout"`
	// ReadTimeout is how long a read may take. Default 5s.
	ReadTimeout time.Duration `yaml:"read_timeout"`
}

// Limits bound what one request may ask for.
type Limits struct {
	// BodyBytes is the largest JSON body. Default 8MiB.
	BodyBytes Bytes `yaml:"body_bytes"`
	// JSONDepth is the deepest nesting of a body. Default 1000.
	JSONDepth int `yaml:"json_depth"`
	// BatchCells is the largest number of cells in one batch. Default 10000.
	BatchCells int `yaml:"batch_cells"`
	// BatchBytes is the largest body of a batch. Default 64MiB.
	BatchBytes Bytes `yaml:"batch_bytes"`
	// QueueBytes bounds the cells that wait for their shard; beyond it puts
	// are answered with 429. Default 256MiB.
	QueueBytes Bytes `yaml:"queue_bytes"`
}

// Tailer turns binlogs into Kafka records.
type Tailer struct {
	// Clusters are those that this process tails. Default all.
	Clusters []string `yaml:"clusters"`
	// TailMaster allows to tail a master whose minions are all gone: a reader
	// may then see cells that no other machine has. Default false.
	TailMaster bool `yaml:"tail_master"`
	// HeartbeatInterval is how often a heartbeat is written. Default 500ms.
	HeartbeatInterval time.Duration `yaml:"heartbeat_interval"`
	// TransactionCells is the most cells of one Kafka transaction; one that
	// touches many shards may hold 16 a shard. Default 10000.
	TransactionCells int `yaml:"transaction_cells"`
	// FillShards is how many shards are read at a time from the entity tables,
	// where the binlog does not reach back. Default 4.
	FillShards int `yaml:"fill_shards"`
	// FillMaxLag is how far a minion may be behind while its entity tables are
	// read: beyond it reading pauses, for a minute at most. Default 10s. 0: it
	// never pauses.
	FillMaxLag time.Duration `yaml:"fill_max_lag"`
	// AutoPromote is for how long a cluster's master may be away before this
	// process makes another node the master; it then also makes an opened node
	// writable that comes back from a restart. It needs accounts.admin, and
	// accounts.replica to point the other nodes at the new master.
	// Default 0: it leaves that to an operator.
	AutoPromote time.Duration `yaml:"auto_promote"`
}

// Indexer keeps index tables in step.
type Indexer struct {
	// Schemas is the directory of index definitions, *.yml and *.yaml. A
	// relative path is relative to the configuration. Default empty: no index.
	Schemas string `yaml:"schemas"`
}

// Admin is the port of operators and probes.
type Admin struct {
	// Listen is the address of /livez, /readyz and /metrics. Default
	// 127.0.0.1:9180.
	Listen string `yaml:"listen"`
	// PProf also serves /debug/pprof/. Default false.
	PProf bool `yaml:"pprof"`
	// MaxLag is the lag from commit to Kafka at which /readyz fails. Default
	// 10s.
	MaxLag time.Duration `yaml:"max_lag"`
}

// Log says what is logged, to standard error.
type Log struct {
	// Level is debug, info, warn or error. Default info.
	Level string `yaml:"level"`
	// Format is text or json. Default text.
	Format string `yaml:"format"`
}

// Default returns the values of what a file leaves out.
func Default() Config {
	return Config{
		Worker: Worker{Listen: "127.0.0.1:8080", Copies: 1, ShutdownGrace: 10 * time.Second, PutTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second},
		Limits: Limits{BodyBytes: 8 << 20, JSONDepth: 1000, BatchCells: 10000, BatchBytes: 64 << 20, QueueBytes: 256 << 20},
		Tailer: Tailer{HeartbeatInterval: 500 * time.Millisecond, TransactionCells: 10000, FillShards: 4, FillMaxLag: 10 * time.Second},
		Admin:  Admin{Listen: "127.0.0.1:9180", MaxLag: 10 * time.Second},
		Log:    Log{Level: "info", Format: "text"},
	}
}

// Cluster returns a storage cluster, nil if there is none of that name.
func (c *Config) Cluster(name string) *Cluster {
	for i := range c.Clusters {
		if c.Clusters[i].Name == name {
			return &c.Clusters[i]
		}
	}
	return nil
}

// Addr returns the address of a cluster's node, empty if it has none of that
// name.
func (c *Cluster) Addr(node string) string {
	for _, n := range c.Nodes {
		if n.Name == node {
			return n.Addr
		}
	}
	return ""
}

// Datastore returns the options of a datastore, the defaults if it is not
// listed.
func (c *Config) Datastore(name string) Datastore {
	out := Datastore{Name: name}
	for _, d := range c.Datastores {
		if d.Name == name {
			out = d
		}
	}
	if out.Ack == "" {
		out.Ack = "copy"
		if len(c.Clusters) < 2 {
			out.Ack = "primary"
		}
	}
	return out
}
