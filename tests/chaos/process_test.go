package chaos

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/cellog/cellog/tests/harness"
)

// process is a part of cellog that runs by itself.
type process struct {
	t            *testing.T
	name, binary string
	env, args    []string
	log          io.Writer
	url          string // of a worker's API
	up           func() error
	cmd          *exitCmd
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// start starts it; await waits until it is up.
func (p *process) start() {
	p.t.Helper()
	cmd, err := startCmd(p.binary, p.args, append(os.Environ(), p.env...), p.log)
	if err != nil {
		p.t.Fatalf("start %s: %v", p.name, err)
	}
	p.cmd = cmd
}

func (p *process) await() {
	p.t.Helper()
	harness.WaitFor(p.t, time.Minute, func() error {
		select {
		case <-p.cmd.done:
			p.t.Fatalf("%s ended by itself: %v", p.name, p.cmd.err)
		default:
		}
		return p.up()
	})
}

// kill ends it with SIGKILL; twice is fine.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // gone is as good
		<-p.cmd.done
	}
}

// stop ends it in an orderly way.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.cmd.done:
		return p.cmd.err
	case <-time.After(time.Minute):
		return errors.New("it did not stop within a minute of SIGTERM")
	}
}
