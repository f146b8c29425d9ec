package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/app"
)

func newCluster() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Look at storage clusters, promote and rejoin their nodes"}
	cmd.AddCommand(newClusterList(), newClusterDescribe(), newClusterPromote(), newClusterRejoin())
	return cmd
}

func newClusterPromote() *cobra.Command {
	var t target
	var format string
	var req app.Promote
	var expect int
	cmd := &cobra.Command{
		Use:   "promote CLUSTER",
		Short: "Make another node the master of a storage cluster",
		Long: `Make a node the master of its storage cluster: the most advanced one, or the one named with --to. The old master need
not answer. Nothing that was acknowledged is lost: what the node lacks comes from the copies on the other clusters'
masters, and what is final from Kafka. Puts are answered 202 meanwhile.

It needs Kafka, and the master of every other cluster, since each may hold copies. A promotion that was cut off is
finished by running it again; promoting the old master itself undoes one.

Exit codes: 0 promoted, 1 not.`,
		Example: `  cellog cluster promote c1
  cellog cluster promote c1 --to c1b
  cellog cluster promote c1 --without c2   # c2's master is dead for good: its copies are given up`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			req.Cluster, req.Expect = args[0], cellog.Term(expect)
			req.Progress = func(step string) { fmt.Fprintln(cmd.ErrOrStderr(), step) }
			out, err := app.PromoteCluster(cmd.Context(), cfg, app.Env{}, req)
			if err != nil {
				return err
			}
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(out)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is the master of %s in term %d, after %.1f s: %d cells came from copies, %d from Kafka\n",
				out.Node, out.Cluster, out.Term, out.Seconds, out.Drained, out.Restored)
			if out.Lost > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%d copies met another body under their key: see cellog buffer rejects\n", out.Lost)
			}
			for node, why := range out.Left {
				fmt.Fprintf(cmd.OutOrStdout(), "%s does not follow: %s\n", node, why)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Node, "to", "", "the node to promote (default: the most advanced one)")
	f.StringSliceVar(&req.Without, "without", nil, "clusters whose masters are dead for good; copies that only they had are given up")
	f.BoolVar(&req.MasterDead, "master-dead", false, "the old master is dead for good, where no copies fence it (one cluster alone, or ack primary)")
	f.IntVar(&expect, "expect-term", 0, "promote only if the cluster is of this term")
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func newClusterRejoin() *cobra.Command {
	var t target
	var format string
	var req app.Rejoin
	cmd := &cobra.Command{
		Use:   "rejoin CLUSTER NODE",
		Short: "Let a node follow its cluster's master again, rebuilt if need be",
		Long: `Let a node, such as an old master that is back, follow its cluster's master again. One that has nothing of its own is
only re-pointed. One that has transactions which its master has not, or whose replication fails for that reason, or that
has no data, is rebuilt: what it holds of other clusters' cells is carried over first, and its errant cells,
which its master has not, are listed; say what is to become of them. With ack copy or final no client was told that those
are stored. With ack primary one may have been: put them again. One under whose key another body stands is then a rejected
cell (cellog buffer rejects).

The worker, the tailer and the indexer then have their rights on the node's shards, either way; the accounts must be there.

All that cellog keeps on a node that is rebuilt is dropped and copied anew, over SQL. For hundreds of gigabytes copy the files instead
(MySQL's clone plugin, mariadb-backup), then run this again.

Exit codes: 0 it follows, 3 there are errant cells and --errant was not given (nothing was changed), 1 it failed.`,
		Example: `  cellog cluster rejoin c1 c1a
  cellog cluster rejoin c1 c1a --errant put`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			switch req.Errant {
			case app.ErrantKeep, app.ErrantPut, app.ErrantDrop:
			default:
				return usageError("--errant %q: want put or drop", req.Errant)
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			req.Cluster, req.Node = args[0], args[1]
			req.Progress = func(step string) { fmt.Fprintln(cmd.ErrOrStderr(), step) }
			out, err := app.RejoinNode(cmd.Context(), cfg, app.Env{}, req)
			if format == "json" {
				err = errors.Join(err, json.NewEncoder(cmd.OutOrStdout()).Encode(out))
			} else {
				printErrant(cmd, out)
			}
			if errors.Is(err, app.ErrErrant) {
				return exitError{exitDifferences, err}
			}
			if err == nil && format != "json" {
				how := "re-pointed"
				if out.Rebuilt {
					how = fmt.Sprintf("rebuilt with %d rows", out.Rows)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s follows %s, %s, after %.1f s\n", out.Node, out.Master, how, out.Seconds)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&req.Errant, "errant", "", "what to do with cells that only this node has: put (again, as a client would) or drop")
	cmd.Flags().BoolVar(&req.Rebuild, "rebuild", false, "rebuild a node that does not follow, though nothing proves that it differs from its master")
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func printErrant(cmd *cobra.Command, out app.Rejoined) {
	if len(out.Errant) == 0 {
		return
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "DATASTORE\tSHARD\tADDED_ID\tEPOCH\tMASTER HAS\tCELL")
	for _, c := range out.Errant {
		has := "nothing"
		if c.Conflict {
			has = "another body"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\n", c.Datastore, c.Shard, c.AddedID, c.Epoch, has, c.Key)
	}
	_ = w.Flush() // standard output; nothing to do about it
	if n := len(out.Errant); n < out.ErrantTotal {
		fmt.Fprintf(cmd.OutOrStdout(), "These are the first %d of %d.\n", n, out.ErrantTotal)
	}
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
		if c.Nominated != "" {
			fmt.Fprintf(w, "%s\t%s takes writes, but %s is the node that was opened: cellog cluster promote %s\n", c.Name, c.Nominated, c.Opened, c.Name)
		}
	}
	return w.Flush()
}
