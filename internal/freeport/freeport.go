// Package freeport finds ports on 127.0.0.1 for servers that keep theirs.
//
// It promises ports that were free a moment ago and that the kernel does not
// give to outgoing connections: one that it does give, as listening on port 0
// would, can be taken by any client while its server is down or about to start
// (seen: a broker that could not bind). It does not reserve them: another
// server may be faster, and then the start fails.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

const (
	lowest = 10_000
	// ephemeral is where Linux begins with the ports of outgoing connections,
	// unless ip_local_port_range says otherwise.
	ephemeral = 32_768
	attempts  = 200
)

// Take returns the first of n free ports in a row.
func Take(n int) (int, error) {
	end := ephemeral
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if _, err := fmt.Sscan(string(text), &end); err != nil {
			end = ephemeral
		}
	}
	if end < lowest+100*n { // all ports are given to connections here
		end = 65_000
	}
	var last error
	for range attempts {
		first := lowest + rand.IntN(end-lowest-n)
		if last = free(first, n); last == nil {
			return first, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row from %d to %d: %w", n, lowest, end, last)
}

// free returns nil if n ports can be listened on, all at the same time.
func free(first, n int) (err error) {
	for p := first; p < first+n; p++ {
		l, lerr := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
		if lerr != nil {
			return lerr
		}
		defer func() { err = errors.Join(err, l.Close()) }()
	}
	return nil
}
