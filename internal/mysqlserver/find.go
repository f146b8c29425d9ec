package mysqlserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Flavour is a kind of server.
type Flavour string

// The flavours. Auto stands for whichever is found first.
const (
	Auto    Flavour = "auto"
	MariaDB Flavour = "mariadb"
	MySQL   Flavour = "mysql"
)

// EnvBinary names the environment variable with the path of a server's binary.
const EnvBinary = "CELLOG_MYSQLD"

// Binary is a server that is installed.
type Binary struct {
	Path    string
	Flavour Flavour
	Version string // such as 10.11.6-MariaDB or 9.7.4
	text    string // all that --version prints
	script  bool   // a wrapper such as the one of tools/get-mysql.sh
}

// noDefaults returns the option that keeps the server from reading /etc. It
// must be the first and only one, so a wrapper script has to give it itself.
func (b Binary) noDefaults() []string {
	if b.script {
		return nil
	}
	return []string{"--no-defaults"}
}

var versionText = regexp.MustCompile(`\bVer ([0-9]+\.[0-9]+\.[0-9]+(?:-MariaDB)?)`)

// Identify asks the binary at path what it is.
func Identify(path string) (Binary, error) {
	b := Binary{Path: path, Flavour: MySQL}
	head := make([]byte, 2)
	f, err := os.Open(path)
	if err == nil {
		_, err = io.ReadFull(f, head)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return Binary{}, fmt.Errorf("mysqlserver: %s: %w", path, err)
	}
	b.script = string(head) == "#!"
	out, err := exec.Command(path, append(b.noDefaults(), "--version")...).Output()
	if err != nil {
		return Binary{}, fmt.Errorf("mysqlserver: %s --version: %w", path, err)
	}
	text := strings.TrimSpace(string(out))
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return Binary{}, fmt.Errorf("mysqlserver: %s is no MySQL or MariaDB server: --version prints %.80q", path, text)
	}
	b.Version, b.text = m[1], text
	if strings.Contains(text, "MariaDB") {
		b.Flavour = MariaDB
	}
	return b, nil
}

// Find returns a server of the wanted flavour. With a path it is that one, or
// ErrWrongFlavour. Without, these are looked at: $CELLOG_MYSQLD, mariadbd and
// mysqld on the PATH and in the usual folders, and .cache/mysql/mysqld of the
// working directory and the folders above (where tools/get-mysql.sh puts it).
func Find(want Flavour, path string) (Binary, error) {
	if path != "" {
		b, err := Identify(path)
		if err == nil && want != Auto && b.Flavour != want {
			err = fmt.Errorf("%w: %s is %s %s, want %s", ErrWrongFlavour, path, b.Flavour, b.Version, want)
		}
		return b, err
	}
	var errs []error
	for _, p := range candidates() {
		b, err := Identify(p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if want == Auto || b.Flavour == want {
			return b, nil
		}
	}
	return Binary{}, errors.Join(append([]error{fmt.Errorf("%w: %s", ErrNotFound, Hint(want))}, errs...)...)
}

// Hint says in one line how to get a server of the flavour.
func Hint(want Flavour) string {
	switch want {
	case MySQL:
		return "want MySQL 8.4 or newer: run tools/get-mysql.sh, or set " + EnvBinary + " to the path of mysqld"
	case MariaDB:
		return "want MariaDB 10.6 or newer: apt-get install -y mariadb-server-core"
	default:
		return "want MariaDB 10.6 or MySQL 8.4, or newer: apt-get install -y mariadb-server-core"
	}
}

func candidates() []string {
	var out []string
	if p := os.Getenv(EnvBinary); p != "" {
		out = append(out, p)
	}
	for _, name := range []string{"mariadbd", "mysqld"} {
		if p, err := exec.LookPath(name); err == nil {
			out = append(out, p)
		}
		for _, dir := range []string{"/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/bin", "/usr/local/mysql/bin"} {
			if p := filepath.Join(dir, name); isFile(p) {
				out = append(out, p)
			}
		}
	}
	dir, err := os.Getwd()
	for err == nil {
		if p := filepath.Join(dir, ".cache", "mysql", "mysqld"); isFile(p) {
			out = append(out, p)
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return out
}

func isFile(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular()
}
