package doctor

import (
	"fmt"
	"slices"
)

// Term is a cluster's newest term: as Kafka has it, or as a server was told.
type Term struct {
	Term   int
	Opened bool // else it is claimed
	// Node was opened, on the server of that name (Server.Name).
	Node, Server string
}

func (t Term) state() string {
	if t.Opened {
		return fmt.Sprintf("term %d, open", t.Term)
	}
	return fmt.Sprintf("term %d, claimed", t.Term)
}

// OpenedNode wants the node that Kafka says was opened to be the one that takes
// writes. newest is nil where none was opened yet.
func OpenedNode(cluster string, newest *Term, servers []Server) Finding {
	f := Finding{Where: cluster, Check: "the opened node", Level: Bad, Fix: "cellog cluster promote " + cluster}
	if newest == nil {
		f.Level, f.Found, f.Fix = Warn, "none", "made by `cellog datastore create`"
		f.Why = "its tailer waits for it"
		return f
	}
	f.Found = newest.Node + " (" + newest.state() + ")"
	writable := ""
	for _, s := range servers {
		if s.Writable && s.Node.Name != newest.Node {
			writable = s.Node.Name
		}
	}
	i := slices.IndexFunc(servers, func(s Server) bool { return s.Node.Name == newest.Node })
	switch {
	case i < 0:
		f.Want, f.Why = "a node of the configuration", "nobody can ask it for its copies, or promote without it"
		f.Fix = "add it to clusters[].nodes, or, if it is gone for good: " + f.Fix
	case !newest.Opened:
		f.Want, f.Why = "open", "a promotion goes on, or was left: the cluster's stream stands still meanwhile"
	case servers[i].Reached && servers[i].Name() != newest.Server:
		f.Found += ", on server " + servers[i].Name()
		f.Want, f.Why = "on server "+newest.Server, "that node's data was replaced: it is not the master that was opened"
	case writable != "":
		f.Found += "; " + writable + " takes writes"
		f.Want, f.Why = "writes on the node that was opened", "somebody else made it writable: that only nominates it"
		f.Fix += ", which makes it the master, or SET GLOBAL read_only=ON there"
	default:
		f.Level, f.Fix = OK, ""
	}
	return f
}

// Terms compares what a cluster's master was told of all clusters' terms, its
// table cellog_meta.terms, with what Kafka says. fix is the command that tells it
// again.
func Terms(s Server, told, newest map[string]Term, clusters []string, fix string) (out []Finding) {
	for _, c := range clusters {
		want, ok := newest[c]
		if !ok {
			continue
		}
		has, knows := told[c]
		own := c == s.Node.Cluster
		f := Finding{Where: s.Node.Name, Check: "the term of cluster " + c, Level: Warn, Want: want.state(), Found: has.state(), Fix: fix}
		switch {
		case !knows:
			f.Found = "not told (cellog_meta.terms)"
			f.Why = "it takes no copies of that cluster's cells, and gives it none: puts wait until they are in Kafka"
			if own {
				f.Why = "it takes no copies of other clusters' cells: their puts wait until they are in Kafka"
			}
		case has.Term > want.Term:
			f.Level, f.Why = Bad, "Kafka has forgotten a term, or is another one: an older master's copies are refused"
			f.Fix = "correct kafka.brokers and kafka.prefix; if the positions topic lost its end, promote the cluster until its term is above"
		case has.Term < want.Term && !want.Opened:
			f.Why, f.Fix = "a promotion goes on, or was left", "cellog cluster promote "+c
		case has.Term < want.Term && !own:
			f.Level, f.Why = Bad, "it may take copies from a master that was deposed, and leave its own with it: what was acknowledged could be lost"
		case own && has.Server != "" && has.Server != s.Name():
			f.Found += " on server " + has.Server
			f.Want += " on server " + s.Name()
			f.Level, f.Why = Bad, "it takes no copies of other clusters' cells, and no puts: it was not opened as the master"
		case own && (!has.Opened || has.Term < want.Term || has.Server == ""):
			f.Why = "it takes no copies of other clusters' cells: their puts wait until they are in Kafka"
		default:
			f.Level, f.Fix = OK, ""
		}
		out = append(out, f)
	}
	return out
}
