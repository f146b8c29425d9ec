package config

import (
	"strings"
	"testing"
)

func TestUnknownNamesSayWhichThereAre(t *testing.T) {
	c := Config{Clusters: []Cluster{{Name: "c1", Nodes: []Node{{Name: "c1a"}, {Name: "c1b", Addr: "b:1"}}}, {Name: "c2"}}}
	found, err := c.FindCluster("c1")
	if err != nil || found != &c.Clusters[0] {
		t.Fatalf("%+v %v", found, err)
	}
	if n, err := found.FindNode("c1b"); err != nil || n.Addr != "b:1" {
		t.Errorf("%+v %v", n, err)
	}
	_, err = c.FindCluster("c9")
	if want := `no cluster "c9" in the configuration: want one of c1, c2`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	_, err = found.FindNode("c1x")
	if want := `no node "c1x" in cluster c1: want one of c1a, c1b`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	c.Clusters = c.Clusters[:1]
	_, err = c.FindCluster(strings.Repeat("x", 1000))
	if err == nil || !strings.HasSuffix(err.Error(), ": want c1") || len(err.Error()) > 200 {
		t.Errorf("%v", err)
	}
}
