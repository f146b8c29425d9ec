package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/app"
)

func newDatastore() *cobra.Command {
	cmd := &cobra.Command{Use: "datastore", Short: "Make and look at datastores"}
	cmd.AddCommand(newDatastoreCreate(), newDatastoreList(), newDatastoreDescribe())
	return cmd
}

func newDatastoreCreate() *cobra.Command {
	var t target
	var c app.Create
	cmd := &cobra.Command{
		Use:   "create NAME --shards N",
		Short: "Make a datastore's databases on all clusters",
		Long: `Make a datastore: a database per shard, spread over the clusters, and the first positions in Kafka. The number of
shards is fixed for ever. What is there already is left alone, so an interrupted create is finished by running it
again. accounts.admin of the configuration must be allowed to create databases.`,
		Example: `  cellog datastore create trips --shards 4096 --grant --config cellog.yml`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Name = args[0]
			if err := cellog.CheckDatastore(c.Name); err != nil {
				return exitError{exitUsage, err}
			}
			if err := cellog.CheckShards(c.Shards); err != nil {
				return usageError("--%w", err)
			}
			if c.Partitions != 0 {
				if err := cellog.CheckPartitions(c.Partitions, c.Shards); err != nil {
					return usageError("--%w", err)
				}
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			c.Grant = c.Grant || t.dev // a dev's accounts are known to exist
			bar := newProgress(cmd.ErrOrStderr(), "creating "+c.Name, int64(c.Shards))
			defer bar.abort()
			c.Progress = func(done, shards int) {
				bar.add(1)
				bar.note(fmt.Sprintf("%d of %d shards", done, shards))
			}
			if err := app.CreateDatastore(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, c); err != nil {
				return err
			}
			bar.done(true)
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "datastore %s has its %d shards\n", c.Name, c.Shards)
			return err
		},
	}
	t.fileFlags(cmd)
	f := cmd.Flags()
	f.IntVar(&c.Shards, "shards", 0, "number of shards, fixed for ever (required)")
	f.IntVar(&c.Partitions, "partitions", 0, "partitions of its topics; must divide the shards (default the shards, up to 256)")
	f.BoolVar(&c.Grant, "grant", false, "grant the accounts of the configuration what they need on the new databases (always, on a dev)")
	must(cmd.MarkFlagRequired("shards"))
	return cmd
}

func newDatastoreList() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the datastores",
		Example: "  cellog datastore list --format json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			all, err := app.Datastores(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)})
			if err != nil {
				return err
			}
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tSHARDS\tPARTITIONS")
			for _, d := range all {
				fmt.Fprintf(w, "%s\t%d\t%d\n", d.Name, d.Shards, d.Partitions)
			}
			return w.Flush()
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func newDatastoreDescribe() *cobra.Command {
	var t target
	var format string
	cmd := &cobra.Command{
		Use:     "describe NAME",
		Short:   "Show where a datastore's shards are and how long their logs are",
		Example: "  cellog datastore describe trips",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			d, err := app.Describe(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(d)
			}
			return printDescription(cmd.OutOrStdout(), d)
		},
	}
	t.fileFlags(cmd)
	formatFlag(cmd, &format)
	return cmd
}

func printDescription(out io.Writer, d app.Description) error {
	fmt.Fprintf(out, "%s: %d shards, %d partitions, columns %v\n", d.Name, d.Shards, d.Partitions, d.Columns)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SHARD\tCLUSTER\tNODE\tEPOCH\tCELLS")
	for _, s := range d.Routes {
		if s.Error != "" {
			fmt.Fprintf(w, "%d\t-\t-\t-\t%s\n", s.Shard, s.Error)
			continue
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\n", s.Shard, s.Cluster, s.Node, s.Epoch, s.Cells)
	}
	return w.Flush()
}
