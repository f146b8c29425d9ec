package harness

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Mode is what a link does to what passes. Bytes are never dropped, only held
// until the link is healed: as TCP does, which sends them again.
type Mode int

// The modes of a link.
const (
	Pass        Mode = iota
	Cut              // connections are reset, new ones too
	Slow             // everything comes late
	Silent           // connections are made, and nothing passes: a black hole
	SilentNew        // the same for connections that are made from then on
	DropAsks         // nothing passes from the client to the server
	DropAnswers      // nothing passes from the server to the client
	Throttled        // no more than ThrottledRate bytes a second pass each way of a connection
)

// slowness is how late everything comes.
const slowness = 150 * time.Millisecond

// ThrottledRate is what a throttled connection lets pass, in bytes a second.
const ThrottledRate = 20_000

// throttleStep is how often it lets some pass.
const throttleStep = 50 * time.Millisecond

// Link is a proxy between one process and a server, for tests that do something
// to what passes.
type Link struct {
	// From and To say between whom it is.
	From, To string
	target   string
	kafka    bool // answers that name the broker name the link instead
	listener net.Listener

	mu      sync.Mutex
	mode    Mode
	changed chan struct{} // closed when mode changes
	hits    int           // what the mode has held, delayed or cut
	asked   time.Time     // when something passed to the server
	told    time.Time     // when something passed to the client
	conns   map[net.Conn]bool
	tap     func(answer []byte) // sees answers before they pass, if set
	wg      sync.WaitGroup
}

// NewLink listens for one process's connections to a server, until the test ends.
func NewLink(t testing.TB, from, to, target string) *Link {
	t.Helper()
	return newLink(t, from, to, target, false)
}

// NewKafkaLink is NewLink to a broker: what it answers about where brokers are
// names the link instead, or clients would go round it.
func NewKafkaLink(t testing.TB, from, to, target string) *Link {
	t.Helper()
	return newLink(t, from, to, target, true)
}

func newLink(t testing.TB, from, to, target string, kafka bool) *Link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{From: from, To: to, target: target, kafka: kafka, listener: ln, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		ln.Close()
		l.Set(Cut)
		l.wg.Wait()
	})
	return l
}

// Addr is where the process connects to.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// String names both ends.
func (l *Link) String() string { return l.From + "-" + l.To }

// Set changes the mode and returns what the one before has hit.
func (l *Link) Set(m Mode) (hits int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hits, l.hits = l.hits, 0
	l.mode = m
	close(l.changed)
	l.changed = make(chan struct{})
	if m == Cut {
		for c := range l.conns {
			reset(c)
			l.hits++
		}
	}
	return hits
}

// Fired says whether the mode has hit anything.
func (l *Link) Fired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hits > 0
}

// Busy says whether something passed lately that the mode would have hit.
func (l *Link) Busy(m Mode) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lately := func(t time.Time) bool { return time.Since(t) < 2*time.Second }
	return m != DropAnswers && lately(l.asked) || m != DropAsks && lately(l.told)
}

// Watch sets what sees the answers; nil takes it away.
func (l *Link) Watch(tap func([]byte)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tap = tap
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the other side gets a reset
	}
	_ = c.Close()
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.serve(client) })
	}
}

// keep remembers a connection; false if the link is cut.
func (l *Link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode == Cut {
		l.hits++
		reset(c)
		return false
	}
	l.conns[c] = true
	return true
}

func (l *Link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	_ = c.Close()
}

func (l *Link) serve(client net.Conn) {
	if !l.keep(client) {
		return
	}
	defer l.drop(client)
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		reset(client) // as if nobody listened
		return
	}
	if !l.keep(server) {
		return
	}
	defer l.drop(server)
	l.mu.Lock()
	fresh := l.mode == SilentNew
	l.mu.Unlock()
	f := &frames{link: l, asked: map[int32]request{}}
	var both sync.WaitGroup
	pump := func(dst, src net.Conn, asks bool) {
		defer func() { reset(dst); _ = src.Close() }()
		buf := make([]byte, 64<<10)
		for {
			b, err := f.read(src, buf, asks)
			if err != nil {
				if errors.Is(err, io.EOF) { // orderly: let what was sent arrive
					if tcp, ok := dst.(*net.TCPConn); ok {
						_ = tcp.SetLinger(-1)
					}
					_ = dst.Close()
				}
				return
			}
			for len(b) > 0 {
				n := l.hold(asks, fresh, b)
				if _, err := dst.Write(b[:n]); err != nil {
					return
				}
				b = b[n:]
			}
		}
	}
	both.Go(func() { pump(server, client, true) })
	both.Go(func() { pump(client, server, false) })
	both.Wait()
}

// hold returns when so many of the bytes may pass; fresh is a connection made in
// the mode SilentNew.
func (l *Link) hold(asks, fresh bool, b []byte) int {
	counted := false
	for {
		l.mu.Lock()
		held := l.mode == Silent || l.mode == SilentNew && fresh || l.mode == DropAsks && asks || l.mode == DropAnswers && !asks
		late := l.mode == Slow && !counted
		throttled := l.mode == Throttled
		if (held || late || throttled) && !counted {
			l.hits++
			counted = true
		}
		changed, tap := l.changed, l.tap
		if now := time.Now(); !held && !late && asks {
			l.asked = now
		} else if !held && !late {
			l.told = now
		}
		l.mu.Unlock()
		switch {
		case held:
			<-changed
		case late:
			select {
			case <-changed:
			case <-time.After(slowness):
			}
		default:
			if throttled {
				b = b[:min(len(b), ThrottledRate*int(throttleStep)/int(time.Second))]
				select {
				case <-changed:
				case <-time.After(throttleStep):
				}
			}
			if tap != nil && !asks {
				tap(b)
			}
			return len(b)
		}
	}
}

// frames cuts a Kafka connection into its frames, so that answers which name
// the broker's address can name the link's.
type frames struct {
	link *Link

	mu    sync.Mutex
	asked map[int32]request // by correlation id: those that need it
}

type request struct{ key, version int16 }

// read returns the next bytes of a connection: any that are there, or for Kafka
// one whole frame.
func (f *frames) read(src net.Conn, buf []byte, asks bool) ([]byte, error) {
	if !f.link.kafka {
		n, err := src.Read(buf)
		if n > 0 {
			return buf[:n], nil
		}
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(src, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > 256<<20 {
		return nil, errors.New("no Kafka frame")
	}
	frame := make([]byte, 4+n)
	copy(frame, size[:])
	if _, err := io.ReadFull(src, frame[4:]); err != nil {
		return nil, err
	}
	if asks && n >= 8 {
		r := request{int16(binary.BigEndian.Uint16(frame[4:])), int16(binary.BigEndian.Uint16(frame[6:]))}
		switch kmsg.Key(r.key) {
		case kmsg.Metadata, kmsg.FindCoordinator, kmsg.DescribeCluster:
			f.mu.Lock()
			f.asked[int32(binary.BigEndian.Uint32(frame[8:]))] = r
			f.mu.Unlock()
		}
		return frame, nil
	}
	if !asks && n >= 4 {
		id := int32(binary.BigEndian.Uint32(frame[4:]))
		f.mu.Lock()
		r, ok := f.asked[id]
		delete(f.asked, id)
		f.mu.Unlock()
		if ok {
			return f.rename(frame, r)
		}
	}
	return frame, nil
}

// rename puts the link's address in place of the broker's.
func (f *frames) rename(frame []byte, r request) ([]byte, error) {
	resp := kmsg.ResponseForKey(r.key)
	resp.SetVersion(r.version)
	head := 8 // size and correlation id
	if resp.IsFlexible() {
		head++ // no tags
	}
	if err := resp.ReadFrom(frame[head:]); err != nil {
		return nil, err
	}
	host, text, err := net.SplitHostPort(f.link.Addr())
	if err != nil {
		return nil, err
	}
	p, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	port := int32(p)
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		for i := range r.Brokers {
			r.Brokers[i].Host, r.Brokers[i].Port = host, port
		}
	case *kmsg.FindCoordinatorResponse:
		if r.Host != "" {
			r.Host, r.Port = host, port
		}
		for i := range r.Coordinators {
			if r.Coordinators[i].Host != "" {
				r.Coordinators[i].Host, r.Coordinators[i].Port = host, port
			}
		}
	case *kmsg.DescribeClusterResponse:
		for i := range r.Brokers {
			r.Brokers[i].Host, r.Brokers[i].Port = host, port
		}
	}
	out := resp.AppendTo(frame[:head:head])
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out, nil
}
