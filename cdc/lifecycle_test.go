package cdc

import (
	"context"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

func TestStartAndStopInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newFakeKafka(), newFakeServer()
		tl := newFakeTailer(t, k, s, nil)
		mustStop(t, tl)
		for range 20 {
			s.put(shard0, "BASE", 1)
			if err := tl.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if rand.IntN(2) == 0 {
				synctest.Wait()
			}
			mustStop(t, tl)
		}
		if err := tl.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		mustStop(t, tl)
		if n := k.published(t, shard0); n != 20 {
			t.Errorf("%d published", n)
		}
	})
}

func TestConfigDefaultsKeepWhatIsSet(t *testing.T) {
	k, s := newFakeKafka(), newFakeServer()
	full := Config{
		Cluster: "c", Publisher: k, Nodes: func(context.Context) ([]Node, error) { return nil, nil }, TailMaster: true,
		Merged: func(string) bool { return true }, Beat: s.beat, BeatEvery: 2 * time.Second, StandBy: 9 * time.Second, Mark: "m",
		MaxTransactionCells: 2, MaxTransactionBytes: 3, MaxQueueBytes: 4, Transcoders: 5, FillWait: 6, HeadsEvery: 7, SilentAfter: 8, LookEvery: 9,
	}
	got, err := full.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	a, b := reflect.ValueOf(full), reflect.ValueOf(got)
	for i := range a.NumField() {
		if f := a.Field(i); f.Comparable() && !f.IsZero() && !f.Equal(b.Field(i)) {
			t.Errorf("%s: %v became %v", a.Type().Field(i).Name, f, b.Field(i))
		}
	}
	for _, bad := range []Config{{}, {Cluster: "c"}, {Cluster: "c", Publisher: k}, {Cluster: "c", Publisher: k, Nodes: full.Nodes, BeatEvery: time.Second, StandBy: time.Second}} {
		if _, err := New(bad); err == nil {
			t.Errorf("%+v: accepted", bad)
		}
	}
}
