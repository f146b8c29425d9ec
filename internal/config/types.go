package config

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Secret is text that prints as asterisks everywhere; Reveal gives it.
type Secret struct{ text string }

// NewSecret returns a Secret that holds text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text.
func (s Secret) Reveal() string { return s.text }

// String hides the text.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	return "******"
}

// GoString hides the text.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// LogValue hides the text.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Bytes is a number of bytes, written as a plain number or with KiB, MiB or
// GiB.
type Bytes int64

var units = []struct {
	suffix string
	size   Bytes
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseBytes reads what Bytes.String writes.
func ParseBytes(s string) (Bytes, error) {
	text, size := strings.TrimSpace(s), Bytes(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			text, size = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > int64(1<<62/size) {
		return 0, fmt.Errorf("%.40q: want a number of bytes such as 8388608, 512KiB or 8MiB", s)
	}
	return Bytes(n) * size, nil
}

// String returns the shortest form with a unit.
func (b Bytes) String() string {
	for _, u := range units {
		if b != 0 && b%u.size == 0 {
			if u.size == 1 {
				break
			}
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// UnmarshalText reads what ParseBytes reads.
func (b *Bytes) UnmarshalText(text []byte) error {
	n, err := ParseBytes(string(text))
	*b = n
	return err
}

// UnmarshalYAML reads a scalar as UnmarshalText does. It is here because of
// the error, which the library gives a place only if it comes with a token.
func (b *Bytes) UnmarshalYAML(node ast.Node) error {
	scalar, ok := node.(ast.ScalarNode)
	if !ok {
		return &yaml.SyntaxError{Message: "want a number of bytes such as 8388608, 512KiB or 8MiB", Token: node.GetToken()}
	}
	if err := b.UnmarshalText([]byte(fmt.Sprint(scalar.GetValue()))); err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: node.GetToken()}
	}
	return nil
}

// MarshalText writes what String returns.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
