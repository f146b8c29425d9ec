package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/body"
	"github.com/cellog/cellog/storage"
)

// ScanEntity calls f for the cells of one shard with after < added_id <= upTo, in
// order, at most limit of them, their bodies in stored form. The cell and its body
// are f's until it returns: what it keeps it must copy. f's error ends the scan and
// is returned; the session that was read is thrown away then. A damaged cell ends
// it with storage.ErrDamaged. db may be any server that holds the shard.
//
// The tailer reads millions of cells so: the driver's rows are taken as they come,
// without database/sql's copy of each value.
func ScanEntity(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, after, upTo cellog.AddedID, limit int, f func(*cellog.Cell) error) error {
	q := "SELECT " + cellFields + " FROM " + quote(datastore, shard) + ".entity WHERE added_id > " + strconv.FormatInt(int64(after), 10) +
		" AND added_id <= " + strconv.FormatInt(int64(upTo), 10) + " ORDER BY added_id LIMIT " + strconv.Itoa(limit)
	for try := 0; ; try++ {
		rows, err := scan(ctx, db, datastore, shard, q, f)
		// An idle session may be found dead when it is used: as database/sql does,
		// take another one.
		if rows > 0 || try == 2 || !errors.Is(err, driver.ErrBadConn) {
			return err
		}
	}
}

func scan(ctx context.Context, db *sql.DB, datastore string, shard cellog.ShardID, q string, f func(*cellog.Cell) error) (n int, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // gives it back
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = conn.Raw(func(dc any) error {
		rows, err := dc.(driver.QueryerContext).QueryContext(ctx, q, nil)
		if err != nil {
			return err
		}
		n, err = scanRows(rows, cellog.Cell{Datastore: datastore, Shard: shard}, f)
		if err != nil {
			cancel() // or closing rows would read what nobody wants
		}
		if cerr := rows.Close(); err == nil {
			err = cerr
		}
		return err
	})
	return n, err
}

// scanRows reads rows of cellFields into one cell.
func scanRows(rows driver.Rows, c cellog.Cell, f func(*cellog.Cell) error) (n int, err error) {
	names := map[string]string{} // of columns, so that each is one string
	dest := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(dest); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		n++
		id, ok0 := dest[0].(int64)
		epoch, ok1 := dest[1].(int64)
		row, ok2 := dest[2].([]byte)
		column, ok3 := dest[3].([]byte)
		ref, ok4 := dest[4].(int64)
		stored, ok5 := dest[5].([]byte)
		created, ok6 := dest[6].(time.Time)
		trace, ok7 := dest[7].([]byte)
		if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || !ok7 && dest[7] != nil || len(row) != len(c.Row) {
			return n, fmt.Errorf("added_id %v: a field has another type or length than entity's: %w", dest[0], storage.ErrDamaged)
		}
		c.AddedID, c.Epoch, c.Ref, c.Body, c.CreatedAt = cellog.AddedID(id), cellog.Epoch(epoch), cellog.RefKey(ref), stored, created.UTC()
		copy(c.Row[:], row)
		if c.Column, ok0 = names[string(column)]; !ok0 {
			c.Column = string(column)
			names[c.Column] = c.Column
		}
		c.TraceParent = string(trace)
		if err := body.Check(c.Body); err != nil {
			return n, fmt.Errorf("cell %s, added_id %d: %w (%w)", c.Key, c.AddedID, storage.ErrDamaged, err)
		}
		if err := f(&c); err != nil {
			return n, err
		}
	}
}

// Place is a cell's place.
type Place struct {
	Datastore string
	Shard     cellog.ShardID
	AddedID   cellog.AddedID
}

// CellsAt calls f for the cells at the given places of one server, without their
// bodies; where there is none, it is not called. It asks for many shards in one
// statement, and all of them must be there.
func CellsAt(ctx context.Context, db *sql.DB, places []Place, f func(Place, cellog.Cell)) error {
	for from := 0; from < len(places); from += shardsPerLook {
		batch := places[from:min(from+shardsPerLook, len(places))]
		parts := make([]string, len(batch))
		for i, p := range batch {
			parts[i] = "SELECT " + strconv.Itoa(i) + ", epoch, row_key, column_name, ref_key FROM " + quote(p.Datastore, p.Shard) +
				".entity WHERE added_id = " + strconv.FormatInt(int64(p.AddedID), 10)
		}
		rows, err := db.QueryContext(ctx, strings.Join(parts, " UNION ALL "))
		if err != nil {
			return err
		}
		err = each(rows, func() error {
			var i int
			var row sql.RawBytes
			var c cellog.Cell
			if err := rows.Scan(&i, &c.Epoch, &row, &c.Column, &c.Ref); err != nil {
				return err
			}
			copy(c.Row[:], row)
			c.Datastore, c.Shard, c.AddedID = batch[i].Datastore, batch[i].Shard, batch[i].AddedID
			f(batch[i], c)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
