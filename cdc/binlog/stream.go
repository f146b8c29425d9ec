package binlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/cdc"
)

// A position string is made at most this often while transactions stream: it
// is a hint, and rows before it are skipped.
const positionEvery = 20 * time.Millisecond

// stream turns events into transactions. All of it runs on the syncer's
// goroutine; err is read by Run after the syncer has ended.
//
// Invariants:
//
//  1. cur is nil outside a transaction.
//  2. gset holds exactly the transactions whose end event was seen.
type stream struct {
	ctx    context.Context
	handle func(*cdc.Transaction) error
	max    int
	err    error

	gset    mysql.GTIDSet
	addGTID func() error // adds the current transaction to gset
	lastPos time.Time

	cur      *cdc.Transaction
	explicit bool // BEGIN was seen: a query event is not the end
	tooBig   bool
	read     int64 // bytes of its events so far
	told     int64 // of these, what the tailer knows

	parser   *replication.BinlogParser
	checksum int           // bytes at the end of each event of the server
	rowData  []byte        // of the row event that was parsed last
	zstd     *zstd.Decoder // nil until a transaction is compressed
	tables   map[string]*table
	names    map[string]string
}

type kind int

const (
	other kind = iota
	entity
	beats
)

// table is what is known of a table; a changed layout is looked at again.
type table struct {
	kind  kind
	shard cdc.ShardKey
	bad   error
	types []byte
	meta  []uint16
}

func newStream(ctx context.Context, flavour string, gset mysql.GTIDSet, maxBytes int, handle func(*cdc.Transaction) error) *stream {
	s := &stream{
		ctx: ctx, handle: handle, max: maxBytes, gset: gset, parser: replication.NewBinlogParser(),
		tables: make(map[string]*table), names: make(map[string]string),
	}
	s.parser.SetFlavor(flavour)
	s.parser.SetRowsEventDecodeFunc(s.decodeRows)
	s.parser.SetTableMapOptionalMetaDecodeFunc(func([]byte) error { return nil }) // nobody needs it
	return s
}

// HandleEvent takes the next event. It blocks while the tailer is behind.
func (s *stream) HandleEvent(e *replication.BinlogEvent) error {
	if s.err != nil {
		return s.err
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	raw, err := s.plain(e)
	if err == nil {
		err = s.packet(raw)
	}
	s.err = err
	return err
}

func (s *stream) mariadbGTID(ev *replication.MariadbGTIDEvent) error {
	set, ok := s.gset.(*mysql.MariadbGTIDSet)
	if !ok {
		return errors.New("binlog: a MariaDB GTID from a MySQL server")
	}
	s.begin(func() error { return set.AddSet(&ev.GTID) })
	s.explicit = !ev.IsStandalone()
	return nil
}

func (s *stream) mysqlGTID(ev *replication.GTIDEvent) error {
	set, ok := s.gset.(*mysql.MysqlGTIDSet)
	if !ok {
		return errors.New("binlog: a MySQL GTID from a MariaDB server")
	}
	id, err := uuid.FromBytes(ev.SID)
	if err != nil {
		return fmt.Errorf("binlog: GTID: %w", err)
	}
	tag, gno := ev.Tag, ev.GNO
	s.begin(func() error {
		if gno > 0 { // anonymous transactions have none
			set.AddGTIDWithTag(id, tag, gno)
		}
		return nil
	})
	return nil
}

// begin starts a transaction; an unfinished one, cut off by a crash of the
// server, is dropped.
func (s *stream) begin(add func() error) {
	s.cur, s.addGTID, s.explicit, s.tooBig = &cdc.Transaction{}, add, false, false
	s.read, s.told = 0, 0
}

func (s *stream) query(database string, q []byte) error {
	if s.cur == nil {
		return nil
	}
	switch {
	case bytes.Equal(q, []byte("BEGIN")), bytes.HasPrefix(q, []byte("XA START")):
		s.explicit = true
		return nil
	case bytes.Equal(q, []byte("COMMIT")):
		return s.commit()
	case bytes.Equal(q, []byte("ROLLBACK")):
		s.cur.Changes, s.cur.Beats = nil, nil
		return s.commit()
	}
	for _, l := range losses(database, q) {
		if ds, shard, ok := cellog.ParseDatabaseName(l.database); ok {
			s.change(cdc.ShardKey{Datastore: ds, Shard: shard}).Lost = l.err()
		}
	}
	if !s.explicit {
		return s.commit() // DDL is a transaction of one query
	}
	if !bytes.HasPrefix(q, []byte("SAVEPOINT")) && !bytes.HasPrefix(q, []byte("ROLLBACK TO")) {
		s.statement()
	}
	return nil
}

// statement notes that the transaction has a statement where rows should be.
func (s *stream) statement() {
	if s.cur != nil {
		s.cur.Statement = true
	}
}

// prepared ends an XA transaction: its rows are not committed yet, and when
// they will be, nothing tells which they were.
func (s *stream) prepared() error {
	if s.cur == nil {
		return nil
	}
	for i := range s.cur.Changes {
		c := &s.cur.Changes[i]
		c.Rows, c.UpTo = nil, 0
		c.Bad = errors.New("rows written in an XA transaction: cells are put in plain transactions only")
	}
	s.cur.Beats = nil
	return s.commit()
}

func (s *stream) commit() error {
	t := s.cur
	if t == nil {
		return nil
	}
	s.cur = nil
	if err := s.addGTID(); err != nil {
		return fmt.Errorf("binlog: GTID: %w", err)
	}
	if now := time.Now(); now.Sub(s.lastPos) >= positionEvery || len(t.Beats) > 0 {
		s.lastPos = now
		t.Position = s.gset.String()
	}
	if len(t.Changes) == 0 && len(t.Beats) == 0 && t.Position == "" && !t.Statement {
		return nil
	}
	return s.handle(t)
}

func (s *stream) rows(typ replication.EventType, ev *replication.RowsEvent) error {
	data := s.rowData
	s.rowData = nil
	if s.cur == nil {
		return nil
	}
	t := s.table(ev.Table)
	switch t.kind {
	case entity:
		return s.entityRows(typ, ev, t, data)
	case beats:
		// A heartbeat that cannot be read is none, and the tailer's readiness
		// says so; cells go on.
		if t.bad == nil {
			s.beatRows(typ, ev, data)
		}
	}
	return nil
}

func (s *stream) table(m *replication.TableMapEvent) *table {
	if t, ok := s.tables[string(m.Schema)]; ok && t.kind != other && s.same(t, m) {
		return t
	}
	t := &table{types: m.ColumnType, meta: m.ColumnMeta}
	switch {
	case string(m.Schema) == "cellog_meta" && string(m.Table) == "heartbeats":
		t.kind = beats
		t.bad = checkLayout(m, beatLayout)
	case string(m.Table) == "entity":
		ds, shard, ok := cellog.ParseDatabaseName(string(m.Schema))
		if !ok {
			return t
		}
		t.kind, t.shard = entity, cdc.ShardKey{Datastore: ds, Shard: shard}
		t.bad = checkLayout(m, entityLayout)
	default:
		return t
	}
	s.tables[string(m.Schema)] = t
	return t
}

// same says whether a known table is the one that the map describes.
func (s *stream) same(t *table, m *replication.TableMapEvent) bool {
	name := "entity"
	if t.kind == beats {
		name = "heartbeats"
	}
	return string(m.Table) == name && bytes.Equal(t.types, m.ColumnType) && slices.Equal(t.meta, m.ColumnMeta)
}

func (s *stream) change(shard cdc.ShardKey) *cdc.Change {
	ch := s.cur.Changes
	for i := range ch {
		if ch[i].Shard == shard {
			return &ch[i]
		}
	}
	s.cur.Changes = append(ch, cdc.Change{Shard: shard})
	return &s.cur.Changes[len(ch)]
}

// rowOverhead is about what a row takes beside its packet.
const rowOverhead = 136

func (s *stream) entityRows(typ replication.EventType, ev *replication.RowsEvent, t *table, data []byte) error {
	c := s.change(t.shard)
	if c.Bad != nil {
		return nil
	}
	switch typ {
	case replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2:
	case replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1:
		var err error
		if data, err = unpack(data); err != nil {
			return damaged(typ, len(data), err)
		}
	default:
		c.Bad = fmt.Errorf("a %s on entity: cells are immutable, somebody else changed the table", typ)
		return nil
	}
	if t.bad != nil {
		c.Bad = fmt.Errorf("entity: %w", t.bad)
		return nil
	}
	if !fullImage(ev.ColumnBitmap1, len(entityLayout)) {
		c.Bad = errImage
		return nil
	}
	s.cur.Bytes += len(data)
	for cur := (cursor{data: data}); len(cur.data) > 0; {
		before := len(cur.data)
		var r cdc.Row
		if err := s.entityRow(&cur, &r); err != nil {
			return damaged(typ, len(data), err)
		}
		if s.tooBig {
			c.UpTo = max(c.UpTo, r.AddedID)
			continue
		}
		if len(c.Rows) == cap(c.Rows) { // rows are about equally long, and there is no event of more than some megabytes
			c.Rows = slices.Grow(c.Rows, 1+len(cur.data)/(before-len(cur.data)))
		}
		c.Rows = append(c.Rows, r)
		s.cur.Bytes += rowOverhead
	}
	if !s.tooBig && s.cur.Bytes > s.max {
		s.dropRows()
	}
	return nil
}

// dropRows lets go of the rows of a transaction that is too big for memory.
func (s *stream) dropRows() {
	s.tooBig = true
	for i := range s.cur.Changes {
		c := &s.cur.Changes[i]
		for j := range c.Rows {
			c.UpTo = max(c.UpTo, c.Rows[j].AddedID)
		}
		c.Rows = nil
	}
	s.cur.Bytes = 0
}

func (s *stream) beatRows(typ replication.EventType, ev *replication.RowsEvent, data []byte) {
	update := false
	switch typ {
	case replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2:
	case replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2:
		update = true
	case replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1:
		update = typ == replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1
		var err error
		if data, err = unpack(data); err != nil {
			return
		}
	default:
		return
	}
	if !fullImage(ev.ColumnBitmap1, len(beatLayout)) || update && !fullImage(ev.ColumnBitmap2, len(beatLayout)) {
		return
	}
	for cur := (cursor{data: data}); len(cur.data) > 0; {
		b, err := s.beatRow(&cur)
		if err == nil && update {
			b, err = s.beatRow(&cur) // the second image is the new row
		}
		if err != nil {
			return
		}
		s.cur.Beats = append(s.cur.Beats, b)
	}
}
