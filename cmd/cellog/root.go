package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// digit finds what a negative number is taken for.
var digit = regexp.MustCompile(`unknown shorthand flag: '[0-9]'`)

// newRoot builds the whole command tree; each command has a file of its own.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "cellog",
		Short: "A datastore whose contents are their own change log",
		Long: `cellog keeps immutable JSON cells in sharded MySQL and carries every one of them,
once and in order, into Kafka.

Start with "cellog dev", which runs everything on this machine.

Exit codes: 0 all well, 1 it failed, 2 it was called wrongly, 3 it ran and found differences.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		hint := ""
		if digit.MatchString(err.Error()) {
			hint = " (write -- in front of a negative number)"
		}
		return usageError("%w%s\nSee: %s --help", err, hint, cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newDev(), newWorker(), newTailer(), newIndexer(), newTrigger(),
		newDatastore(), newCluster(), newShard(), newTail(), newCell(), newBuffer(), newLog(), newConsume(), newIndex(), newImport(),
		newVerify(), newDoctor(), newDemo(), newVersion(),
	)
	wrapArgs(root)
	return root
}

// wrapArgs marks every complaint about arguments and missing flags as a usage error, and makes a
// parent without a sub-command print its help.
func wrapArgs(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		wrapArgs(sub)
	}
	if cmd.Run == nil && cmd.RunE == nil {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			var names []string
			for _, sub := range cmd.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, sub.Name())
				}
			}
			return usageError("unknown command %q for %q: want one of %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
		}
		return
	}
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := cmd.ValidateRequiredFlags()
		if err == nil {
			err = check(cmd, args)
		}
		if err != nil {
			return exitError{exitUsage, fmt.Errorf("%w\nUsage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}
