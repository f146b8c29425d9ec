package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Load reads and checks a configuration file, fills in the defaults and reads
// the passwords. getenv is os.Getenv, or a test's own.
func Load(path string, getenv func(string) string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	cfg, file, err := parse(path, text)
	if err != nil {
		return nil, err
	}
	base := filepath.Dir(path)
	if cfg.Indexer.Schemas != "" && !filepath.IsAbs(cfg.Indexer.Schemas) {
		cfg.Indexer.Schemas = filepath.Join(base, cfg.Indexer.Schemas)
	}
	var problems []problem
	for i := range cfg.Clusters {
		for _, a := range cfg.Clusters[i].Accounts.all() {
			where := fmt.Sprintf("$.clusters[%d].accounts.%s", i, a.name)
			if p := a.account.readPassword(base, getenv); p != nil {
				problems = append(problems, problem{where + p.path, p.text})
			}
		}
	}
	if err := report(path, file, problems); err != nil {
		return nil, err
	}
	return cfg, nil
}

// Parse reads and checks the text of a configuration without reading any other
// file; name stands in errors.
func Parse(name string, text []byte) (*Config, error) {
	cfg, _, err := parse(name, text)
	return cfg, err
}

func parse(name string, text []byte) (*Config, *ast.File, error) {
	cfg := Default()
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, nil, placed(name, err)
	}
	if len(file.Docs) > 1 {
		return nil, nil, fmt.Errorf("%s: want one YAML document, found %d", name, len(file.Docs))
	}
	if !empty(file) {
		d := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
		if err := d.Decode(&cfg); err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, placed(name, err)
		}
	}
	if err := report(name, file, cfg.check()); err != nil {
		return nil, nil, err
	}
	return &cfg, file, nil
}

// empty says whether a file sets nothing; the decoder would then wipe the
// defaults.
func empty(file *ast.File) bool {
	for _, d := range file.Docs {
		if _, comment := d.Body.(*ast.CommentGroupNode); d.Body != nil && !comment {
			return false
		}
	}
	return true
}

// placed turns an error of the YAML library into file:line:column: message. It
// drops the excerpt of the source that the library would print, which may hold
// what is secret.
func placed(name string, err error) error {
	var e yaml.Error
	if errors.As(err, &e) {
		if t := e.GetToken(); t != nil && t.Position != nil {
			return fmt.Errorf("%s:%d:%d: %s", name, t.Position.Line, t.Position.Column, e.GetMessage())
		}
		return fmt.Errorf("%s: %s", name, e.GetMessage())
	}
	return fmt.Errorf("%s: %w", name, err)
}

// report places each problem in the source and joins them.
func report(name string, file *ast.File, problems []problem) error {
	var errs []error
	for _, p := range problems {
		key := strings.TrimPrefix(p.path, "$.")
		if line, column := position(file, p.path); line > 0 {
			errs = append(errs, fmt.Errorf("%s:%d:%d: %s: %s", name, line, column, key, p.text))
		} else {
			errs = append(errs, fmt.Errorf("%s: %s: %s", name, key, p.text))
		}
	}
	return errors.Join(errs...)
}

// position finds a path's value, or the nearest parent that is there.
func position(file *ast.File, path string) (line, column int) {
	for path != "$" && path != "" {
		if p, err := yaml.PathString(path); err == nil {
			if n, err := p.FilterFile(file); err == nil && n != nil && n.GetToken() != nil {
				pos := n.GetToken().Position
				return pos.Line, pos.Column
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0, 0
}

type namedAccount struct {
	name    string
	account *Account
}

func (a *Accounts) all() []namedAccount {
	return []namedAccount{{"worker", &a.Worker}, {"tailer", &a.Tailer}, {"indexer", &a.Indexer}, {"admin", &a.Admin}, {"replica", &a.Replica}}
}

func (a *Account) readPassword(base string, getenv func(string) string) *problem {
	switch {
	case a.PasswordFile != "":
		path := a.PasswordFile
		if !filepath.IsAbs(path) {
			path = filepath.Join(base, path)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return &problem{".password_file", "cannot read the password: " + err.Error()}
		}
		a.Password = NewSecret(strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"))
	case a.PasswordEnv != "":
		v := getenv(a.PasswordEnv)
		if v == "" {
			return &problem{".password_env", "the environment variable " + a.PasswordEnv + " is not set"}
		}
		a.Password = NewSecret(v)
	}
	return nil
}
