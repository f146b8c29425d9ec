package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/obs"
)

// newLogger logs to standard error, as the configuration says.
func newLogger(cmd *cobra.Command, cfg *config.Config) *slog.Logger {
	return obs.NewLogger(cmd.ErrOrStderr(), obs.LogConfig{Level: cfg.Log.Level, Format: cfg.Log.Format})
}
