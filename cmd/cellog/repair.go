package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/app"
)

func newTailerRepair() *cobra.Command {
	var t target
	var cluster, datastore string
	var shard int
	cmd := &cobra.Command{
		Use:   "repair --cluster NAME --datastore NAME --shard N",
		Short: "Publish again what the topics of a shard lost",
		Long: `Publish from a shard's entity table the cells that are final but that its topics lack, because a topic was deleted,
truncated or recreated, and put the shard's position right. The tailer of such a shard stops with this command in its
error. Stop the cluster's tailer first, and start it after. A repair that was cut off is finished by running it again.`,
		Example: "  cellog tailer repair --config cellog.yml --cluster c1 --datastore trips --shard 7",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cellog.CheckDatastore(datastore); err != nil {
				return exitError{exitUsage, err}
			}
			cfg, err := t.mustLoad()
			if err != nil {
				return err
			}
			done, err := app.RepairShard(cmd.Context(), cfg, app.Env{Log: newLogger(cmd, cfg)}, cluster, datastore, cellog.ShardID(shard))
			if err != nil {
				return err
			}
			for _, topic := range slices.Sorted(maps.Keys(done)) {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %d cells published again\n", topic, done[topic]); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "shard %s is whole; start the tailer\n", cellog.DatabaseName(datastore, cellog.ShardID(shard)))
			return err
		},
	}
	t.fileFlags(cmd)
	cmd.Flags().StringVar(&cluster, "cluster", "", "the storage cluster that owns the shard (required)")
	cmd.Flags().StringVar(&datastore, "datastore", "", "the datastore (required)")
	cmd.Flags().IntVar(&shard, "shard", 0, "the shard's number (required)")
	for _, f := range []string{"cluster", "datastore", "shard"} {
		must(cmd.MarkFlagRequired(f))
	}
	return cmd
}
