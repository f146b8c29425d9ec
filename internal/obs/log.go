package obs

import (
	"io"
	"log/slog"
	"strings"
)

// LogConfig says what is logged and how.
type LogConfig struct {
	// Level is debug, info, warn or error; empty means info.
	Level string
	// Format is text or json; empty means text.
	Format string
}

// NewLogger returns a logger that writes to w. Unknown settings mean the
// defaults: configurations are checked by internal/config.
func NewLogger(w io.Writer, c LogConfig) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(strings.ToUpper(c.Level))); err != nil {
		level = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Discard returns a logger that writes nothing.
func Discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
