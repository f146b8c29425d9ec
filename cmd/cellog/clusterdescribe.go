package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/internal/app"
)

func newClusterDescribe() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "describe CLUSTER",
		Short: "Show all of a storage cluster: nodes, terms, shards, copies, and its record in Kafka",
		Long: `Show what ` + "`cellog cluster list`" + ` shows of a cluster, and: its record in Kafka, a claim included; how many shards of each
datastore it owns; what transactions each node has (GTIDs) and which terms of all clusters it knows; and the copies of its
cells that other clusters' masters hold.

Exit codes: 0 every server answered, 3 one did not, or the cluster has no master.`,
		Example: `  cellog cluster describe c1
  cellog cluster describe c1 --format json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			d, err := app.DescribeCluster(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(d)
			} else if err = printClusters(cmd, []app.ClusterState{d.ClusterState}); err == nil {
				err = printCluster(cmd.OutOrStdout(), d)
			}
			if err == nil && !wellClusters([]app.ClusterState{d.ClusterState}) {
				return exitError{exitDifferences, fmt.Errorf("not all is well")}
			}
			return err
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func printCluster(out io.Writer, d app.ClusterDescription) error {
	fmt.Fprintln(out) // errors come with Flush
	if p := d.Position; p != nil {
		fmt.Fprintf(out, "in Kafka: term %d is %s, node %s, server %s, written at %s\n", p.Term, p.State, p.Node, p.ServerUUID, p.UpdatedAt.Format(time.RFC3339))
		fmt.Fprintf(out, "claim mark %s, tailer mark %s\n", orDash(p.ClaimMark), orDash(p.TailerMark))
	}
	for _, ds := range slices.Sorted(maps.Keys(d.Owned)) {
		fmt.Fprintf(out, "owns %d shards of %s\n", d.Owned[ds], ds)
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nNODE\tKNOWS TERM\tGTIDS")
	for _, name := range slices.Sorted(maps.Keys(d.Details)) {
		n := d.Details[name]
		terms := ""
		for _, r := range n.Terms {
			terms += fmt.Sprintf("%s=%d %s  ", r.Cluster, r.Term, r.State)
		}
		gtids := n.GTIDs
		if n.Problem != "" {
			gtids = n.Problem
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, orDash(terms), gtids)
	}
	fmt.Fprintln(w, "\nCOPIES OF ITS CELLS ON\tNUMBERED\tUNNUMBERED")
	for _, c := range d.Copies {
		if c.Problem != "" {
			fmt.Fprintf(w, "%s/%s\t%s\n", c.Cluster, c.Node, c.Problem)
			continue
		}
		fmt.Fprintf(w, "%s/%s\t%d\t%d\n", c.Cluster, c.Node, c.Numbered, c.Unnumbered)
	}
	return w.Flush()
}
