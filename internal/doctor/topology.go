package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// Machines finds servers that stand in the configuration twice, by different
// addresses: two clusters that share one would number the same shards. It also
// finds those that replication takes for one.
func Machines(servers []Server) []Finding {
	var out []Finding
	first, uuids, ids := map[string]Node{}, map[string]Node{}, map[string]Node{}
	for _, s := range servers {
		if s.Machine == "" {
			continue
		}
		other, twice := first[s.Machine]
		if !twice {
			first[s.Machine] = s.Node
			out = append(out, alike(uuids, s.UUID, "server_uuid "+s.UUID, s.Node, "stop the server, remove auto.cnf from its data directory, start it")...)
			if s.UUID == "" || len(out) == 0 || out[len(out)-1].Where != s.Node.Name {
				out = append(out, alike(ids, s.Node.Cluster+"/"+s.ID, "server_id "+s.ID, s.Node, "[mysqld] server_id of its own, then restart")...)
			}
			continue
		}
		out = append(out, Finding{Where: s.Node.Name, Check: "a server of its own", Level: Bad, Found: "the server of " + other.Cluster + "/" + other.Name,
			Want: "one server per node", Why: "copies on one machine are no copies, and two clusters would write the same shards",
			Fix: "correct clusters[].nodes[].addr"})
	}
	return out
}

// alike finds a second server of the same id.
func alike(seen map[string]Node, id, found string, n Node, fix string) []Finding {
	other, twice := seen[id]
	if id == "" || !twice {
		seen[id] = n
		return nil
	}
	return []Finding{{Where: n.Name, Check: "an id of its own", Level: Bad, Found: found + ", as " + other.Cluster + "/" + other.Name, Want: "another one for each server",
		Why: "a server drops what comes with its own id, and an opened node is known by its id", Fix: fix}}
}

// Cluster compares the servers of one cluster: one takes writes, all others do
// not.
func Cluster(name string, servers []Server) []Finding {
	var writable, reached []string
	for _, s := range servers {
		if s.Reached {
			reached = append(reached, s.Node.Name)
		}
		if s.Writable {
			writable = append(writable, s.Node.Name)
		}
	}
	f := Finding{Where: name, Check: "one writable node", Level: OK, Found: strings.Join(writable, ", "), Want: "exactly one"}
	switch {
	case len(reached) == 0:
		f.Level, f.Found = Bad, "unknown"
		f.Why, f.Fix = "no node of the cluster answers", "start them, or correct clusters[].nodes[].addr and accounts.admin"
	case len(writable) == 0 && len(reached) < len(servers):
		// One of those that do not answer may be it: then a second one is worse
		// than none.
		f.Level, f.Found = Bad, "none of those that answer"
		f.Why, f.Fix = "the cluster's shards take no puts", "bring back the nodes that do not answer, and look again"
	case len(writable) == 0:
		f.Level, f.Found = Bad, "none"
		f.Why, f.Fix = "the cluster's shards take no puts", "SET GLOBAL read_only=OFF on the node that its last `open` names"
	case len(writable) > 1:
		f.Level = Bad
		f.Why, f.Fix = "two masters: a minion that takes writes splits the log", "SET GLOBAL read_only=ON on all but the master"
	}
	out := []Finding{f}
	m := Finding{Where: name, Check: "minions", Level: OK, Found: strconv.Itoa(len(servers) - 1), Want: "1 or more"}
	if len(servers) < 2 {
		m.Level, m.Why, m.Fix = Warn, "the master's machine is the only one that has the newest cells", "add a replica to the cluster"
	}
	return append(out, m)
}

// Sources wants every minion to replicate from its own cluster's master. One that
// follows another cluster's brings other shards' cells, and never its own.
func Sources(servers []Server) (out []Finding) {
	for _, s := range servers {
		if s.Source == "" && s.SourceUUID == "" {
			continue
		}
		f := Finding{Where: s.Node.Name, Check: "replication source", Level: OK, Want: "the master of cluster " + s.Node.Cluster}
		from, known := sourceOf(s, servers)
		f.Found = from.Node.Cluster + "/" + from.Node.Name
		switch {
		case !known:
			f.Found = s.SourceAddr + " (server_id " + s.Source + "), which is none of those that answer"
			f.Level, f.Why = Bad, "it follows a server that is not of its cluster"
			if missing(s.Node.Cluster, servers) || s.Source == "0" { // 0: it was never reached
				f.Level, f.Why = Warn, "whether that is of its cluster is not known: not all of its nodes answer"
			}
		case from.Node.Cluster != s.Node.Cluster:
			f.Level, f.Why = Bad, "it follows a server of another cluster, and gets that one's cells"
		case s.Writable && !from.Writable:
			f.Level, f.Why = Bad, "a master that follows its own minion takes its writes twice"
			f.Fix = "STOP REPLICA; RESET REPLICA ALL (STOP SLAVE; RESET SLAVE ALL on MariaDB) on " + s.Node.Name
		case !from.Writable:
			f.Level, f.Why = Warn, "it follows a minion: it stands still when that one is lost"
		}
		if f.Level != OK && f.Fix == "" {
			f.Fix = "cellog cluster rejoin " + s.Node.Cluster + " " + s.Node.Name + ", or correct clusters[].nodes"
		}
		out = append(out, f)
	}
	return out
}

// sourceOf finds the server that s follows. Only server_uuid is unique: two
// clusters may count their server_ids from 1 both.
func sourceOf(s Server, servers []Server) (Server, bool) {
	for _, same := range []func(o Server) bool{
		func(o Server) bool { return s.SourceUUID != "" && o.UUID == s.SourceUUID },
		func(o Server) bool { return o.Node.Addr != "" && o.Node.Addr == s.SourceAddr },
		func(o Server) bool { return s.SourceUUID == "" && o.ID == s.Source && o.Node.Cluster == s.Node.Cluster },
		func(o Server) bool { return s.SourceUUID == "" && o.ID == s.Source },
	} {
		for _, o := range servers {
			if same(o) && o.Node.Name != s.Node.Name {
				return o, true
			}
		}
	}
	return Server{}, false
}

// missing says whether a node of a cluster does not answer.
func missing(cluster string, servers []Server) bool {
	for _, s := range servers {
		if s.Node.Cluster == cluster && !s.Reached {
			return true
		}
	}
	return false
}

// OpenShard is a shard that is open on a writable node.
type OpenShard struct{ Cluster, Node, Shard string }

// Shards finds shards that are open in two clusters, or in another one than owns
// them; owners are what Kafka says.
func Shards(open []OpenShard, owners map[string]string) (out []Finding) {
	first := map[string]OpenShard{}
	for _, o := range open {
		f := Finding{Where: o.Node, Check: "shard " + o.Shard, Level: Bad, Found: "open"}
		switch other, twice := first[o.Shard]; {
		case owners[o.Shard] != "" && owners[o.Shard] != o.Cluster:
			f.Want = "it is cluster " + owners[o.Shard] + "'s"
		case twice && other.Cluster != o.Cluster:
			f.Found, f.Want = "open, and on "+other.Cluster+"/"+other.Node+" too", "open in one cluster"
		default:
			first[o.Shard] = o
			continue
		}
		f.Why = "what is written there never reaches Kafka, or two logs of one shard do"
		f.Fix = "look which node belongs to which cluster (clusters[].nodes), and SET GLOBAL read_only=ON on the one that is wrong"
		out = append(out, f)
	}
	return out
}

// Copies says what fewer clusters than two cost.
func Copies(clusters int) []Finding {
	if clusters != 1 {
		return nil
	}
	return []Finding{{Where: "clusters", Check: "copies", Level: Warn, Found: fmt.Sprint(clusters, " cluster"), Want: "2 or more",
		Why: "no other cluster can hold copies: a put is answered when it is on its master's disk alone (ack primary), or fails while its master is away", Fix: "add a cluster"}}
}
