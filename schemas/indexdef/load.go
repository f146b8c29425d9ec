package indexdef

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Load reads one file.
func Load(file string) (Definition, error) {
	f, err := os.Open(file)
	if err != nil {
		return Definition{}, fmt.Errorf("index definition: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return Definition{}, fmt.Errorf("index definition: %w", err)
	}
	return Parse(file, text)
}

// LoadDir reads every file of a folder whose name ends in .yaml or .yml and
// does not begin with a dot, in the order of their names; sub-folders are left
// alone. The mistakes of all files are in the error, also a table that two
// files define for one datastore. A folder without definitions is no error.
func LoadDir(dir string) ([]Definition, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("index definitions: %w", err)
	}
	var names []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if !e.IsDir() && (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	var all []Definition
	var errs []error
	first := map[string]Definition{}
	for _, name := range names {
		d, err := Load(filepath.Join(dir, name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		id := d.Datastore + "/" + d.Table
		if other, twice := first[id]; twice {
			errs = append(errs, &Error{
				File: d.File, Line: d.Line, Column: 1,
				Message: fmt.Sprintf("datastore %s has its table %s already in %s:%d", d.Datastore, d.Table, other.File, other.Line),
			})
			continue
		}
		first[id] = d
		all = append(all, d)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}
