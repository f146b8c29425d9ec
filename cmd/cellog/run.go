package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/config"
)

func newWorker() *cobra.Command {
	return newRole("worker", "the HTTP node that takes puts and answers reads", func(cfg *config.Config, env app.Env) (app.Role, error) {
		return app.NewWorker(cfg, env)
	})
}

func newTailer() *cobra.Command {
	var promote *time.Duration
	cmd := newRole("tailer", "the process that carries committed cells from binlogs into Kafka", func(cfg *config.Config, env app.Env) (app.Role, error) {
		if *promote >= 0 {
			cfg.Tailer.AutoPromote = *promote
		}
		return app.NewTailers(cfg, env)
	})
	run, _, err := cmd.Find([]string{"run"})
	must(err)
	promote = run.Flags().Duration("auto-promote", -1, "after how long without its master another node of a cluster becomes the master; 0: never (default: tailer.auto_promote)")
	cmd.AddCommand(newTailerRepair())
	return cmd
}

func newIndexer() *cobra.Command {
	return newRole("indexer", "the process that keeps index tables in step", func(cfg *config.Config, env app.Env) (app.Role, error) {
		if cfg.Indexer.Schemas == "" {
			return nil, errors.New("indexer.schemas is empty: there is no index to keep")
		}
		return app.NewIndexer(cfg, env)
	})
}

func newTrigger() *cobra.Command {
	return newRole("trigger", "the process that runs compiled-in triggers on every cell", func(*config.Config, app.Env) (app.Role, error) {
		return nil, errors.New(`this binary has no triggers compiled in: a trigger is a Go function, so make a program of your own
that calls triggers.New and On (package triggers); "cellog demo" shows one at work`)
	})
}

// newRole makes "cellog ROLE run --config FILE".
func newRole(name, what string, build func(*config.Config, app.Env) (app.Role, error)) *cobra.Command {
	role := &cobra.Command{Use: name, Short: "Run " + what}
	var file string
	run := &cobra.Command{
		Use:   "run",
		Short: "Run " + what,
		Long: "Run " + what + ` until it is interrupted. On SIGTERM it finishes what is in hand.

The admin address of the configuration serves /livez, /readyz and /metrics.
"cellog dev --print-config" writes a configuration to start from; docs/config.md has every key.`,
		Example: "  cellog " + name + " run --config /etc/cellog/cellog.yml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(file, os.Getenv)
			if err != nil {
				return exitError{exitUsage, err}
			}
			env := app.Env{Log: newLogger(cmd, cfg)}
			return app.Run(cmd.Context(), cfg, env, name, build, func(admin string) {
				env.Log.Info("ready", "role", name, "admin", admin)
			})
		},
	}
	run.Flags().StringVar(&file, "config", "", "configuration file (required)")
	must(run.MarkFlagRequired("config"))
	role.AddCommand(run)
	return role
}
