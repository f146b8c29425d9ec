package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/internal/app"
)

func newCluster() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Look at storage clusters"}
	cmd.AddCommand(newClusterList())
	return cmd
}

func newClusterList() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:   "list [CLUSTER]",
		Short: "Show every cluster's servers: who is master, who is behind, who holds copies",
		Long: `Show every cluster's servers as they are now, and what Kafka says of the cluster: the term, and the node that was
opened in it. A server's lag is the age of the newest heartbeat that it has. Copies are cells of other clusters that wait
for their primary. A server that does not answer within 3 s is shown with the reason.

Exit codes: 0 every server answered, 3 one did not, or a cluster has no master.`,
		Example: `  cellog cluster list
  cellog cluster list c1 --format json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			all, err := app.ClusterStates(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, append(args, "")[0])
			if err != nil {
				return err
			}
			if format == "json" {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			} else {
				err = printClusters(cmd, all)
			}
			if err == nil && !wellClusters(all) {
				return exitError{exitDifferences, fmt.Errorf("not all is well")}
			}
			return err
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func wellClusters(all []app.ClusterState) bool {
	for _, c := range all {
		masters := 0
		for _, n := range c.Nodes {
			if n.Problem != "" {
				return false
			}
			if n.Role == "master" {
				masters++
			}
		}
		if masters != 1 || c.Problem != "" {
			return false
		}
	}
	return true
}

func printClusters(cmd *cobra.Command, all []app.ClusterState) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "CLUSTER\tTERM\tNODE\tROLE\tSHARDS OPEN\tLAG\tCOPIES\tADDR\tVERSION") // errors come with Flush
	for _, c := range all {
		term := fmt.Sprintf("%d %s: %s", c.Term, c.State, c.Opened)
		if c.Problem != "" {
			term = "unknown"
		}
		for _, n := range c.Nodes {
			lag := "-"
			if n.LagSeconds != nil {
				lag = fmt.Sprintf("%.1f s", *n.LagSeconds)
			}
			open := fmt.Sprintf("%d of %d", n.Open, n.Shards)
			version := n.Version
			if n.Problem != "" {
				open, lag, version = "-", "-", n.Problem
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", c.Name, term, n.Name, n.Role, open, lag, n.Buffered, n.Addr, version)
		}
		if c.Problem != "" {
			fmt.Fprintf(w, "%s\t%s\n", c.Name, c.Problem)
		}
	}
	return w.Flush()
}
