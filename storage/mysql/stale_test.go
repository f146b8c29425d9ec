package mysql

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

// A read of the master, or its 404, is unmarked only if a look vouches for it:
// one that is 2 s old at most, and saw no newer term.
func TestReadsThatNoLookVouchesForAreStale(t *testing.T) {
	var opened storage.Opened
	now := time.Now()
	st := newOpenStore(t, 1, func(c *Config) {
		c.Masters = func(cluster string) storage.Opened {
			if cluster != "c0" {
				t.Errorf("cluster %s", cluster)
			}
			return opened
		}
		c.Now = func() time.Time { return now }
	}, mysqltest.Start(t))
	node := st.clusters[0].nodes[0].Name
	row := uuid.New()
	key := cellog.Key{Row: row, Column: "BASE", Ref: 1}
	if _, errs := st.Write(t.Context(), st.ds, 0, []cellog.Put{{Key: key, Body: mustBody(t, `1`)}}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	ctx := t.Context()
	reads := map[string]func(from cellog.ReadFrom) (cellog.Origin, error){
		"newest": func(f cellog.ReadFrom) (cellog.Origin, error) {
			_, o, err := st.Newest(ctx, st.ds, row, "BASE", f)
			return o, err
		},
		"version": func(f cellog.ReadFrom) (cellog.Origin, error) {
			_, o, err := st.Version(ctx, st.ds, key, f)
			return o, err
		},
		"404": func(f cellog.ReadFrom) (cellog.Origin, error) {
			_, o, err := st.Newest(ctx, st.ds, uuid.New(), "BASE", f)
			if !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("%v", err)
			}
			return o, nil
		},
		"row": func(f cellog.ReadFrom) (cellog.Origin, error) {
			_, _, o, err := st.Row(ctx, st.ds, row, "", 9, f)
			return o, err
		},
		"versions": func(f cellog.ReadFrom) (cellog.Origin, error) {
			_, _, o, err := st.Versions(ctx, st.ds, key, 9, f)
			return o, err
		},
		"history": func(f cellog.ReadFrom) (cellog.Origin, error) {
			_, _, o, err := st.History(ctx, st.ds, key, 9, f)
			return o, err
		},
		"log": func(f cellog.ReadFrom) (cellog.Origin, error) {
			_, _, o, err := st.Log(ctx, st.ds, 0, 0, 9, "", 9, f)
			return o, err
		},
		"many": func(f cellog.ReadFrom) (cellog.Origin, error) {
			_, _, o, err := st.Get(ctx, st.ds, []cellog.Get{{Key: key, Newest: true}, {Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 3}}}, 1<<20, f)
			return o, err
		},
	}
	for _, tc := range []struct {
		name   string
		opened storage.Opened
		stale  bool
	}{
		{"a fresh look", storage.Opened{Node: node, Looked: now}, false},
		{"one of 2 s", storage.Opened{Node: node, Looked: now.Add(-2 * time.Second)}, false},
		{"an older one", storage.Opened{Node: node, Looked: now.Add(-2*time.Second - 1)}, true},
		{"another node is opened", storage.Opened{Node: "other", Looked: now}, true},
		{"a newer term is claimed", storage.Opened{Looked: now}, true},
		{"nothing was looked at", storage.Opened{}, true},
	} {
		opened = tc.opened
		for name, read := range reads {
			if o, err := read(cellog.Master); err != nil || o.Stale != tc.stale || o.From != cellog.Master {
				t.Errorf("%s, %s: %+v %v, want stale %t", tc.name, name, o, err, tc.stale)
			}
			// Who asked for a minion was promised nothing.
			if o, err := read(cellog.Minion); err != nil || o.Stale {
				t.Errorf("%s, %s: %+v %v", tc.name, name, o, err)
			}
		}
	}
}

// moves is a storage.Marks of shards that were to move at some time.
type moves struct{ nothingFinal }

func (moves) Mark(string, cellog.ShardID) (storage.Mark, bool) {
	return storage.Mark{Moves: true}, true
}

// A read of a shard that moves is unmarked only while the shard is open where it
// was read, whatever a look at the terms says.
func TestReadsOfAMovedShardAreStale(t *testing.T) {
	var node string
	st := newOpenStore(t, 1, func(c *Config) {
		c.Marks = moves{}
		c.Masters = func(string) storage.Opened { return storage.Opened{Node: node, Looked: time.Now()} }
	}, mysqltest.Start(t))
	node = st.clusters[0].nodes[0].Name
	ctx, db := t.Context(), st.clusters[0].nodes[0].write
	for _, tc := range []struct {
		state string
		epoch int
		stale bool
	}{
		{"open", 1, false}, {"moving:c1", 1, true}, {"open", 1, false}, {"closed", 2, true}, {"copying", 1, true},
	} {
		if _, err := db.ExecContext(ctx, "UPDATE "+quote(st.ds, 0)+".shard_log SET state = ?, epoch = ? WHERE id = 1", tc.state, tc.epoch); err != nil {
			t.Fatal(err)
		}
		_, o, err := st.Newest(ctx, st.ds, uuid.New(), "BASE", cellog.Master)
		if !errors.Is(err, storage.ErrNotFound) || o.Stale != tc.stale {
			t.Errorf("%s in epoch %d: %+v %v, want stale %t", tc.state, tc.epoch, o, err, tc.stale)
		}
		if _, o, err = st.Newest(ctx, st.ds, uuid.New(), "BASE", cellog.Minion); !errors.Is(err, storage.ErrNotFound) || o.Stale {
			t.Errorf("from a minion: %+v %v", o, err)
		}
	}
}
