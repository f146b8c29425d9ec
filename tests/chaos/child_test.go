package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/app"
	"github.com/cellog/cellog/internal/config"
	"github.com/cellog/cellog/internal/devbroker"
	"github.com/cellog/cellog/internal/failpoint"
	"github.com/cellog/cellog/tests/harness"
	"github.com/cellog/cellog/triggers"
)

// childEnv makes the test binary one of the processes of a run.
const childEnv = "CELLOG_CHAOS_CHILD"

// child says what the test binary is to be.
type child struct {
	Kind string // broker, trigger, keeper, promote, or a role; Plant breaks its code

	// Of the broker: its directory and port.
	Dir  string `json:",omitempty"`
	Port int    `json:",omitempty"`
	// Of the trigger: where the cells come from, and where it notes them.
	Brokers []string `json:",omitempty"`
	Prefix  string   `json:",omitempty"`
	Notes   string   `json:",omitempty"`
	// Of a role: its configuration and the failpoint that breaks it. It stops
	// itself at the failpoint StopAt, once, when the file Stop is there.
	Config, Plant, StopAt, Stop string `json:",omitempty"`
	// Of promote: what.
	Cluster string `json:",omitempty"`
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(insideEnv) == "" && os.Getuid() == 0 {
		os.Exit(inside())
	}
	os.Exit(harness.Main(m))
}

// insideEnv says that this process is the one that inside started.
const insideEnv = "CELLOG_CHAOS_INSIDE"

// inside runs the tests in a mount namespace of their own: the kernel takes
// away what they mounted when they end, whatever ends them.
func inside() int {
	runtime.LockOSThread() // Pdeathsig is sent when the thread that made the child ends
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var code *exec.ExitError
	switch {
	case errors.As(err, &code):
		return max(1, code.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos: no mount namespace:", err)
		return 1
	}
	return 0
}

func runChild(text string) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch c.Kind {
	case "broker":
		b, err := devbroker.Start(devbroker.Config{Dir: c.Dir, Port: c.Port, NoSync: true, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			return err
		}
		<-ctx.Done()
		b.Stop()
		return nil
	case "trigger":
		return runTrigger(ctx, c)
	case "keeper":
		cfg, err := config.Load(c.Config, os.Getenv)
		if err != nil {
			return err
		}
		k := app.NewKeeper(cfg, app.Env{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}, 0)
		k.Start()
		<-ctx.Done()
		k.Stop()
		return nil
	case "promote":
		return runPromote(ctx, c)
	}
	return runRole(ctx, c)
}

// note is a cell that the trigger has seen.
type note struct {
	Shard   cellog.ShardID
	AddedID cellog.AddedID
	Key     cellog.Key
}

// runTrigger notes every cell in a file.
func runTrigger(ctx context.Context, c child) error {
	f, err := os.OpenFile(c.Notes, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	rt, err := triggers.New(triggers.Config{Brokers: c.Brokers, Prefix: c.Prefix, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	for _, column := range columns {
		err := rt.On("trips", column, "chaos-"+column, func(_ context.Context, cell cellog.Cell) error {
			text, err := json.Marshal(note{cell.Shard, cell.AddedID, cell.Key})
			if err != nil {
				return err
			}
			_, err = f.Write(append(text, '\n')) // whole, for the file is opened to append
			return err
		})
		if err != nil {
			return err
		}
	}
	return rt.Run(ctx)
}

// runPromote is `cellog cluster promote CLUSTER --format json` with a failpoint
// switched on.
func runPromote(ctx context.Context, c child) error {
	failpoint.Set(func(name string) bool { return name == c.Plant })
	cfg, err := config.Load(c.Config, os.Getenv)
	if err != nil {
		return err
	}
	out, err := app.PromoteCluster(ctx, cfg, app.Env{}, app.Promote{Cluster: c.Cluster, Progress: func(step string) { fmt.Fprintln(os.Stderr, step) }})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// runRole is `cellog ROLE run --config FILE` with a failpoint switched on.
func runRole(ctx context.Context, c child) error {
	failpoint.Set(func(name string) bool {
		if name == c.StopAt {
			if err := os.Rename(c.Stop, c.Stop+"."+filepath.Base(c.Config)); err == nil {
				_ = harness.SignalSelf(syscall.SIGSTOP)
			}
		}
		return name == c.Plant
	})
	cfg, err := config.Load(c.Config, os.Getenv)
	if err != nil {
		return err
	}
	build := map[string]func(*config.Config, app.Env) (app.Role, error){
		"worker":  func(cfg *config.Config, env app.Env) (app.Role, error) { return app.NewWorker(cfg, env) },
		"tailer":  func(cfg *config.Config, env app.Env) (app.Role, error) { return app.NewTailers(cfg, env) },
		"indexer": func(cfg *config.Config, env app.Env) (app.Role, error) { return app.NewIndexer(cfg, env) },
	}[c.Kind]
	if build == nil {
		return errors.New("no role " + c.Kind)
	}
	return app.Run(ctx, cfg, app.Env{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}, c.Kind, build, nil)
}
