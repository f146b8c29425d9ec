package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/mysqltest"
	"github.com/cellog/cellog/storage"
)

// A creation that was cut off is finished by the same call; another number of
// shards is refused from the first moment on; shards lie on their clusters.
func TestCreateDatastore(t *testing.T) {
	nodes := []*mysqltest.Node{mysqltest.Start(t), mysqltest.Start(t)}
	var admins, workers []storage.Cluster
	for i, n := range nodes {
		a, w := clusterOf(mysqltest.Accounts.Admin, n), clusterOf(mysqltest.Accounts.Worker, n)
		a.Name, w.Name = fmt.Sprintf("c%d", i), fmt.Sprintf("c%d", i)
		admins, workers = append(admins, a), append(workers, w)
	}
	broken := errors.New("cut off")
	calls := 0
	var progress []int
	cfg := CreateConfig{Name: "trips", Shards: 6, Clusters: admins, Parallel: 1,
		Progress: func(done, shards int) { progress = append(progress, done*100+shards) },
		Grant: func(ctx context.Context, db *sql.DB, database string) error {
			if strings.HasPrefix(database, "trips_") {
				if calls++; calls == 4 {
					return broken
				}
			}
			return grant(ctx, db, database)
		}}
	if err := CreateDatastore(t.Context(), cfg); !errors.Is(err, broken) {
		t.Fatalf("a failing grant: %v", err)
	}
	other := cfg
	other.Shards, other.Partitions = 12, 6
	if err := CreateDatastore(t.Context(), other); !errors.Is(err, storage.ErrShards) {
		t.Errorf("another number of shards: %v", err)
	}
	progress = nil
	for range 2 {
		if err := CreateDatastore(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(progress) != "[106 206 306 406 506 606 106 206 306 406 506 606]" {
		t.Errorf("progress %v", progress)
	}
	st, err := New(Config{Clusters: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := st.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := st.Datastores(); len(d) != 1 || d[0] != (storage.Datastore{Name: "trips", Shards: 6, Partitions: 6}) {
		t.Errorf("datastores %v", d)
	}
	for s := range cellog.ShardID(6) {
		r, err := st.Route("trips", s)
		if err != nil || r.Cluster != fmt.Sprintf("c%d", s%2) || r.Epoch != cellog.FirstEpoch {
			t.Errorf("shard %d: %v %v", s, r, err)
		}
		_, errs := st.Write(t.Context(), "trips", s, []cellog.Put{{Key: cellog.Key{Row: uuid.New(), Column: "BASE", Ref: 1}, Body: mustBody(t, `1`)}})
		if errs[0] != nil {
			t.Errorf("shard %d: %v", s, errs[0])
		}
	}
	t.Run("cut off between a table and its record", func(t *testing.T) {
		db := nodes[1].DB(t, "")
		for _, q := range []string{
			"DELETE FROM trips_0003.goose_db_version WHERE version_id = 2",
			"DELETE FROM trips_0005.goose_db_version",
			"DELETE FROM cellog_meta.goose_db_version WHERE version_id > 9",
			"DROP TABLE cellog_meta.index_applied",
		} {
			if _, err := db.Exec(q); err != nil {
				t.Fatal(err)
			}
		}
		if err := CreateDatastore(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		for _, s := range []cellog.ShardID{3, 5} {
			if n := checkDense(t, db, "trips", s); n != 1 {
				t.Errorf("shard %d has %d rows", s, n)
			}
		}
	})
	for name, bad := range map[string]CreateConfig{
		"name":       {Name: "Trips", Shards: 6, Clusters: admins},
		"shards":     {Name: "more", Shards: 10001, Clusters: admins},
		"partitions": {Name: "more", Shards: 6, Partitions: 4, Clusters: admins},
		"clusters":   {Name: "more", Shards: 6},
		"cluster":    {Name: "more", Shards: 6, Clusters: []storage.Cluster{admins[1], admins[0]}[:1:1]},
	} {
		if name == "cluster" {
			bad.Clusters[0].Name = "c7" // the server says that it is of c1
		}
		if err := CreateDatastore(t.Context(), bad); err == nil {
			t.Errorf("bad %s accepted", name)
		}
	}
}

// A creation that is run again, with a cluster more or after moves, makes no shard
// a second time.
func TestCreateAgainWithANewCluster(t *testing.T) {
	nodes := []*mysqltest.Node{mysqltest.Start(t), mysqltest.Start(t)}
	var clusters []storage.Cluster
	for i, n := range nodes {
		c := clusterOf(mysqltest.Accounts.Admin, n)
		c.Name = fmt.Sprintf("c%d", i)
		clusters = append(clusters, c)
	}
	ctx := t.Context()
	cfg := CreateConfig{Name: "trips", Shards: 4, Clusters: clusters[:1], Grant: grant}
	if err := CreateDatastore(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Clusters = clusters
	for range 2 {
		if err := CreateDatastore(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{4, 0} {
			if heads, err := Heads(ctx, nodes[i].DB(t, "")); err != nil || len(heads) != want {
				t.Errorf("cluster %d: %+v %v, want %d shards", i, heads, err, want)
			}
		}
	}
	if all, err := DatastoresOf(ctx, nodes[1].DB(t, "")); err != nil || len(all) != 1 {
		t.Errorf("the new cluster does not know the datastore: %v %v", all, err)
	}
}

// A shard that is dropped between the list of the shards and the look at them is
// left out; the others are there.
func TestHeadsWhileShardsAreDropped(t *testing.T) {
	const shards = 24
	node := mysqltest.Start(t)
	db := node.DB(t, "")
	clusters := []storage.Cluster{clusterOf(mysqltest.Accounts.Admin, node)}
	if err := CreateDatastore(t.Context(), CreateConfig{Name: "trips", Shards: shards, Clusters: clusters}); err != nil {
		t.Fatal(err)
	}
	names, err := shardDatabases(t.Context(), db)
	if err != nil || len(names) != shards {
		t.Fatal(names, err)
	}
	node.Exec(t, "DROP DATABASE trips_0007; DROP TABLE trips_0009.shard_log")
	heads, err := appendHeads(t.Context(), db, nil, names)
	if err != nil || len(heads) != shards-2 {
		t.Fatalf("%d shards, %v", len(heads), err)
	}
	for i := range 6 {
		dropped := make(chan error, 1)
		go func() {
			_, err := db.Exec(fmt.Sprintf("DROP DATABASE trips_%04d", i))
			dropped <- err
		}()
		heads, err := Heads(t.Context(), db)
		if left := shards - 2 - i; err != nil || len(heads) != left && len(heads) != left-1 {
			t.Errorf("%d shards of %d, %v", len(heads), left, err)
		}
		if err := <-dropped; err != nil {
			t.Fatal(err)
		}
	}
}

// A creation that is run again asks for many shards at a time, and makes what one
// lacks.
func TestCreateAgainAsksForManyShardsAtATime(t *testing.T) {
	const shards, most = 60, 30
	node := mysqltest.Start(t)
	db := node.DB(t, "")
	cfg := CreateConfig{Name: "trips", Shards: shards, Clusters: []storage.Cluster{clusterOf(mysqltest.Accounts.Admin, node)}}
	selects := func() (n int) {
		t.Helper()
		if err := CreateDatastore(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		var name string
		if err := db.QueryRow("SHOW GLOBAL STATUS LIKE 'Com_select'").Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := selects()
	if n := selects() - first; n > most {
		t.Errorf("%d statements for %d shards that are all there, want at most %d", n, shards, most)
	}
	node.Exec(t, "DROP DATABASE trips_0007; DELETE FROM trips_0009.shard_log; DROP TABLE trips_0011.entity; DELETE FROM trips_0011.goose_db_version; DELETE FROM trips_0013.goose_db_version WHERE version_id = 2")
	selects()
	if heads, err := Heads(t.Context(), db); err != nil || len(heads) != shards {
		t.Errorf("%d shards, %v", len(heads), err)
	}
	if n := checkDense(t, db, "trips", 11); n != 0 {
		t.Errorf("%d rows", n)
	}
	var version int
	if err := db.QueryRow("SELECT MAX(version_id) FROM trips_0013.goose_db_version").Scan(&version); err != nil || version != 2 {
		t.Errorf("a shard of an older version stays at %d, %v", version, err)
	}
}
