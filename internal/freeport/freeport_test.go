package freeport

import (
	"net"
	"strconv"
	"testing"
)

func TestTake(t *testing.T) {
	for range 50 {
		p, err := Take(2)
		if err != nil || p < lowest || p+1 >= 65_000 {
			t.Fatalf("%d, %v", p, err)
		}
		for _, port := range []int{p, p + 1} {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if taken := l.Addr().(*net.TCPAddr).Port; free(taken-1, 2) == nil {
		t.Error("a port that is taken counts as free")
	}
}
