package config

import (
	"fmt"
	"strings"
)

// FindCluster is Cluster for a name that somebody typed: its error says which
// ones there are.
func (c *Config) FindCluster(name string) (*Cluster, error) {
	if found := c.Cluster(name); found != nil {
		return found, nil
	}
	names := make([]string, len(c.Clusters))
	for i := range c.Clusters {
		names[i] = c.Clusters[i].Name
	}
	return nil, fmt.Errorf("no cluster %.80q in the configuration: want %s", name, oneOfNames(names))
}

// FindNode returns a cluster's node; the error says which ones there are.
func (c *Cluster) FindNode(name string) (Node, error) {
	names := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		if n.Name == name {
			return n, nil
		}
		names[i] = n.Name
	}
	return Node{}, fmt.Errorf("no node %.80q in cluster %s: want %s", name, c.Name, oneOfNames(names))
}

// oneOfNames is what is wanted in place of a name that is not there.
func oneOfNames(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return "one of " + strings.Join(names, ", ")
}
