package mysqlserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// templateFormat changes whenever templates are made in another way.
const templateFormat = "1"

// template returns the template data directory of a binary and makes it the
// first time. Parallel processes wait for the one that makes it.
func (c Config) template(ctx context.Context, b Binary) (string, error) {
	sum := sha256.Sum256([]byte(templateFormat + "\x00" + b.Path + "\x00" + b.text))
	dir := filepath.Join(c.TemplateDir, fmt.Sprintf("%s-%s-%s", b.Flavour, b.Version, hex.EncodeToString(sum[:4])))
	if isDir(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(c.TemplateDir, 0o700); err != nil {
		return "", fmt.Errorf("mysqlserver: template: %w", err)
	}
	lock, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return "", fmt.Errorf("mysqlserver: template: %w", err)
	}
	defer lock.Close()
	if isDir(dir) {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(c.TemplateDir, "new-")
	if err != nil {
		return "", fmt.Errorf("mysqlserver: template: %w", err)
	}
	defer os.RemoveAll(tmp)
	data := filepath.Join(tmp, "data")
	if b.Flavour == MariaDB {
		err = initMariaDB(ctx, b, data)
	} else {
		err = initMySQL(ctx, b, data)
	}
	if err != nil {
		return "", err
	}
	if err := syncTree(data); err != nil { // a template must not be half there after a power cut
		return "", fmt.Errorf("mysqlserver: template: %w", err)
	}
	if err := os.Rename(data, dir); err != nil {
		return "", fmt.Errorf("mysqlserver: template: %w", err)
	}
	return dir, nil
}

func asRoot() []string {
	if os.Getuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

func initMySQL(ctx context.Context, b Binary, data string) error {
	args := append(b.noDefaults(), "--initialize-insecure", "--datadir="+data, "--innodb-redo-log-capacity=8M", "--secure-file-priv=NULL")
	if err := run(ctx, nil, b.Path, append(args, asRoot()...)...); err != nil {
		return err
	}
	// Each server makes an identity of its own.
	if err := os.Remove(filepath.Join(data, "auto.cnf")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mysqlserver: template: %w", err)
	}
	return nil
}

// initMariaDB does what mariadb-install-db does; that script is in Debian's
// mariadb-server-core, but a program that it needs is not.
func initMariaDB(ctx context.Context, b Binary, data string) error {
	if err := os.MkdirAll(filepath.Join(data, "mysql"), 0o700); err != nil {
		return fmt.Errorf("mysqlserver: template: %w", err)
	}
	var script bytes.Buffer
	script.WriteString("USE mysql;\nSET @auth_root_socket=NULL;\n")
	for _, name := range []string{"system_tables", "performance_tables", "system_tables_data", "sys_schema"} {
		text, err := systemSQL(b, name)
		if err != nil {
			return err
		}
		script.Write(text)
	}
	// Those make root accounts without a password for TCP, too.
	script.WriteString("\nDELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> 'localhost');\n")
	args := append(b.noDefaults(), "--bootstrap", "--datadir="+data, "--innodb-log-file-size=8M", "--log-warnings=0",
		"--enforce-storage-engine=", "--max-allowed-packet=8M", "--net-buffer-length=16K")
	return run(ctx, &script, b.Path, append(args, asRoot()...)...)
}

// systemSQL returns one of the files with which MariaDB makes its own tables;
// they were renamed in MariaDB 11.
func systemSQL(b Binary, name string) ([]byte, error) {
	path, err := filepath.EvalSymlinks(b.Path)
	if err != nil {
		return nil, fmt.Errorf("mysqlserver: template: %w", err)
	}
	base := filepath.Dir(filepath.Dir(path))
	for _, dir := range []string{"share/mysql", "share/mariadb", "share"} {
		for _, prefix := range []string{"mariadb_", "mysql_"} {
			text, err := os.ReadFile(filepath.Join(base, dir, prefix+name+".sql"))
			if err == nil || !errors.Is(err, fs.ErrNotExist) {
				return text, err
			}
		}
	}
	return nil, fmt.Errorf("%w: no mysql_%s.sql below %s/share; it belongs to %s", ErrNotFound, name, base, b.Path)
}

// run runs a command; the error holds the end of what it printed.
func run(ctx context.Context, in io.Reader, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = in
	cmd.Dir = "/"
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("mysqlserver: %s: %w\n%s", name, err, lastLines(out.Bytes(), 2000))
	}
	return nil
}

// lastLines returns the whole lines among the last n bytes.
func lastLines(b []byte, n int) string {
	if len(b) > n {
		b = b[len(b)-n:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return strings.TrimSpace(string(b))
}

// copyTree copies a template. dst appears only when it is whole.
func copyTree(ctx context.Context, src, dst string) error {
	tmp := dst + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		to := filepath.Join(tmp, rel)
		switch {
		case d.IsDir():
			return os.Mkdir(to, 0o700)
		case d.Type().IsRegular():
			return copyFile(path, to)
		default: // a link or socket is no part of a template
			return nil
		}
	})
	if err != nil {
		return err
	}
	return os.Rename(tmp, dst)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in) // in the kernel, by copy_file_range
	return errors.Join(err, out.Close())
}

func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() && !d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
}

func isDir(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.IsDir()
}
