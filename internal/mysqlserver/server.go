package mysqlserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cellog/cellog/internal/freeport"
	"github.com/cellog/cellog/internal/mysqlconn"
)

// dyingServer is how long Start waits for a server that holds the directory
// but may be about to die with its parent.
const dyingServer = 5 * time.Second

// maxSocket is the longest path of a unix socket that Linux knows.
const maxSocket = 107

// Server is a running server. Its methods may be called from any goroutine.
type Server struct {
	binary Binary
	dir    string
	socket string
	port   int
	pid    int

	done chan struct{} // closed when the process is gone
	err  error         // written before done is closed

	mu       sync.Mutex
	stopping bool // the end is wanted
}

// Start starts a server in cfg.Dir and returns when it answers. ctx bounds the
// start only. A directory that was used before is recovered.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("mysqlserver: dir: %w", err)
	}
	cfg.Dir = dir
	bin, err := Find(cfg.Flavour, cfg.Binary)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.StartTimeout)
	defer cancel()
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o700); err != nil {
		return nil, fmt.Errorf("mysqlserver: %w", err)
	}
	lock, err := holdDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close() // the child keeps it
	if err := prepareData(ctx, cfg, bin); err != nil {
		return nil, err
	}
	socket, err := socketPath(dir)
	if err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		port, err := choosePort(cfg.Port)
		if err != nil {
			return nil, err
		}
		s := &Server{binary: bin, dir: dir, socket: socket, port: port, done: make(chan struct{})}
		err = s.launch(ctx, cfg, lock)
		if err == nil {
			return s, nil
		}
		// Somebody may take a free port before the server does.
		if cfg.Port != 0 || attempt == 4 || ctx.Err() != nil || !errors.Is(err, ErrPortTaken) {
			return nil, err
		}
	}
}

// holdDir takes the directory's lock.
func holdDir(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, dyingServer)
	defer cancel()
	path := filepath.Join(dir, "lock")
	lock, err := lockFile(ctx, path)
	if err == nil {
		return lock, nil
	}
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return nil, fmt.Errorf("mysqlserver: %w", err)
	}
	pid, _ := os.ReadFile(path)
	return nil, fmt.Errorf("%w: a server (pid %s) runs in %s: stop it first, or choose another directory", ErrInUse, bytes.TrimSpace(pid), dir)
}

// prepareData makes the data directory from the template, or checks that the
// one that is there is of the same flavour.
func prepareData(ctx context.Context, cfg Config, bin Binary) error {
	data, mark := filepath.Join(cfg.Dir, "data"), filepath.Join(cfg.Dir, "flavour")
	if isDir(data) {
		got, err := os.ReadFile(mark)
		if err != nil {
			return fmt.Errorf("mysqlserver: %s holds data that mysqlserver did not make: %w", cfg.Dir, err)
		}
		if was := Flavour(bytes.TrimSpace(got)); was != bin.Flavour {
			return fmt.Errorf("%w: %s was made by %s, and %s is %s %s: choose a %s server or another directory",
				ErrWrongFlavour, cfg.Dir, was, bin.Path, bin.Flavour, bin.Version, was)
		}
		return nil
	}
	tmpl, err := cfg.template(ctx, bin)
	if err != nil {
		return err
	}
	if err := os.WriteFile(mark, []byte(bin.Flavour+"\n"), 0o600); err != nil {
		return fmt.Errorf("mysqlserver: %w", err)
	}
	if err := copyTree(ctx, tmpl, data); err != nil {
		return fmt.Errorf("mysqlserver: copy template: %w", err)
	}
	return nil
}

// socketPath returns a path that is short enough: in dir, or else in a private
// directory below the temporary one, always the same for the same dir.
func socketPath(dir string) (string, error) {
	if p := filepath.Join(dir, "sock"); len(p) <= maxSocket-len(".lock") {
		return p, os.Chmod(dir, 0o700)
	}
	sum := sha256.Sum256([]byte(dir))
	d := filepath.Join("/tmp", "cellog-"+strconv.Itoa(os.Getuid())+"-"+hex.EncodeToString(sum[:6]))
	if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("mysqlserver: socket: %w", err)
	}
	st, err := os.Lstat(d)
	if err != nil {
		return "", fmt.Errorf("mysqlserver: socket: %w", err)
	}
	// Root has no password behind the socket: nobody else may get there.
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || !st.IsDir() || int(sys.Uid) != os.Getuid() || st.Mode().Perm() != 0o700 {
		return "", fmt.Errorf("mysqlserver: socket: %s is there and is not a directory of mode 0700 of this user: remove it", d)
	}
	return filepath.Join(d, "sock"), nil
}

// choosePort returns want, or a free port, after a look whether it is free.
func choosePort(want int) (int, error) {
	if want == 0 {
		return freeport.Take(1)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(want)))
	if err != nil {
		return 0, fmt.Errorf("%w: 127.0.0.1:%d: %w", ErrPortTaken, want, err)
	}
	return want, l.Close()
}

// launch starts the process and waits until it answers.
func (s *Server) launch(ctx context.Context, cfg Config, lock *os.File) error {
	for _, stale := range []string{s.socket, s.socket + ".lock"} {
		if err := os.Remove(stale); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("mysqlserver: %w", err)
		}
	}
	logPath := filepath.Join(s.dir, "error.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("mysqlserver: %w", err)
	}
	defer log.Close()
	st, err := log.Stat()
	if err != nil {
		return fmt.Errorf("mysqlserver: %w", err)
	}
	cmd := exec.Command(s.binary.Path, cfg.options(s.binary, filepath.Join(s.dir, "data"), s.socket, s.port)...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), cfg.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // its own group: Ctrl-C is for the parent
	started := make(chan error, 1)
	go s.parent(cmd, started)
	if err := <-started; err != nil {
		return fmt.Errorf("mysqlserver: start %s: %w", s.binary.Path, err)
	}
	s.pid = cmd.Process.Pid
	if err := lock.Truncate(0); err == nil {
		_, _ = lock.WriteAt([]byte(strconv.Itoa(s.pid)+"\n"), 0) // for the text of ErrInUse only
	}
	err = s.await(ctx)
	if err == nil {
		return nil
	}
	s.Kill()
	tail := ""
	if b, rerr := os.ReadFile(logPath); rerr == nil && int64(len(b)) >= st.Size() {
		tail = lastLines(b[st.Size():], 3000)
	}
	if strings.Contains(tail, "Address already in use") {
		err = fmt.Errorf("%w: %w", ErrPortTaken, err)
	}
	return fmt.Errorf("mysqlserver: %s in %s did not come up: %w\nend of %s:\n%s", s.binary.Path, s.dir, err, logPath, tail)
}

// parent starts the child and waits for its end, on one OS thread: the kernel
// sends Pdeathsig when the thread that made the child ends.
func (s *Server) parent(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = cmd.Wait()
	s.mu.Lock()
	if !s.stopping {
		s.err = fmt.Errorf("mysqlserver: server in %s ended by itself: %w", s.dir, orClean(err))
	}
	s.mu.Unlock()
	close(s.done)
}

func orClean(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// await returns when the server answers a query.
func (s *Server) await(ctx context.Context) error {
	db, err := s.Open("")
	if err != nil {
		return err
	}
	defer db.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var one int
		qctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := db.QueryRowContext(qctx, "SELECT 1").Scan(&one)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return s.Err()
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w)", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Open returns a pool of root sessions, through the socket; one packet may
// carry several statements. The caller closes it.
func (s *Server) Open(database string) (*sql.DB, error) {
	return mysqlconn.Open(mysqlconn.Config{Addr: s.socket, User: "root", Database: database, MultiStatements: true})
}

// Addr returns host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Port returns the TCP port.
func (s *Server) Port() int { return s.port }

// Socket returns the path of the unix socket.
func (s *Server) Socket() string { return s.socket }

// Dir returns the server's directory.
func (s *Server) Dir() string { return s.dir }

// PID returns the process id of the server.
func (s *Server) PID() int { return s.pid }

// Flavour returns MariaDB or MySQL.
func (s *Server) Flavour() Flavour { return s.binary.Flavour }

// Version returns the server's version, such as 9.7.4 or 10.11.6-MariaDB.
func (s *Server) Version() string { return s.binary.Version }

// Done is closed when the process is gone.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why the process is gone: nil while it runs and after Stop or
// Kill.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Stop shuts the server down and returns when it is gone; twice is fine. When
// ctx ends first, the server is killed, which loses nothing committed, and the
// error says so.
func (s *Server) Stop(ctx context.Context) error {
	s.signal(syscall.SIGTERM)
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		s.Kill()
		return fmt.Errorf("mysqlserver: server in %s did not stop in time and was killed: %w", s.dir, ctx.Err())
	}
}

// Kill ends the server as a crash would and returns when it is gone.
func (s *Server) Kill() {
	s.signal(syscall.SIGKILL)
	<-s.done
}

func (s *Server) signal(sig syscall.Signal) {
	select {
	case <-s.done: // the pid may be another process's by now
		return
	default:
	}
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	_ = syscall.Kill(s.pid, sig) // it may end by itself just now
}
