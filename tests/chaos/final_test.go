package chaos

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/internal/kafka"
	"github.com/cellog/cellog/schemas/record"
)

// errBoundTwice says that one final id names two cells.
var errBoundTwice = errors.New("a final id is bound to two cells")

// place is a cell's final id.
type place struct {
	shard cellog.ShardID
	id    cellog.AddedID
}

// identity is what a final id names for ever.
type identity struct {
	epoch cellog.Epoch
	key   cellog.Key
}

// boundOnce checks that over all promotions no final id was ever bound to two
// cells: in the whole of Kafka, and between Kafka and every live host.
func (c *chaos) boundOnce() error {
	finals, err := c.finals()
	if err != nil {
		return err
	}
	for _, n := range c.r.nodes() {
		db, err := asRoot(n)
		if err != nil {
			return err
		}
		defer db.Close()
		for _, s := range c.r.shardsOf(n.Name) {
			rows, err := db.QueryContext(c.t.Context(), "SELECT added_id, epoch, row_key, column_name, ref_key FROM "+cellog.DatabaseName("trips", s)+".entity ORDER BY added_id")
			if err != nil {
				return err
			}
			var was cellog.Epoch
			cells := 0
			for ; err == nil && rows.Next(); cells++ {
				var row []byte
				var has identity
				at := place{shard: s}
				if err = rows.Scan(&at.id, &has.epoch, &row, &has.key.Column, &has.key.Ref); err != nil {
					break
				}
				copy(has.key.Row[:], row)
				switch in, ok := finals[at]; {
				case !ok:
					err = fmt.Errorf("%s has cell %d of shard %d (epoch %d, %s), and Kafka has not", n.Name, at.id, s, has.epoch, has.key)
				case in != has:
					err = fmt.Errorf("%w: cell %d of shard %d is (epoch %d, %s) on %s, and (epoch %d, %s) in Kafka", errBoundTwice, at.id, s, has.epoch, has.key, n.Name, in.epoch, in.key)
				case has.epoch < was:
					err = fmt.Errorf("%s: cell %d of shard %d is of epoch %d, behind one of epoch %d", n.Name, at.id, s, has.epoch, was)
				}
				was = has.epoch
			}
			if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// finals reads all that was ever published.
func (c *chaos) finals() (map[place]identity, error) {
	cfg := kafka.Config{Addrs: c.r.config.Kafka.Brokers}
	admin, err := kafka.NewAdmin(cfg)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	finals := map[place]identity{}
	keep := map[string]string{} // one text a column
	for _, column := range columns {
		topic := cellog.TopicName(c.r.config.Kafka.Prefix, "trips", column)
		ends, err := admin.CommittedOffsets(c.t.Context(), topic)
		if err != nil {
			return nil, err
		}
		for partition, o := range ends {
			err := kafka.ReadRange(c.t.Context(), cfg, topic, partition, o.Start, o.End, func(f kafka.Fetched) error {
				cell, err := record.Decode(f.Record)
				if err != nil {
					return fmt.Errorf("%s/%d, offset %d: %w", topic, partition, f.Offset, err)
				}
				if keep[cell.Column] == "" {
					keep[cell.Column] = cell.Column
				}
				at, is := place{cell.Shard, cell.AddedID}, identity{cell.Epoch, cell.Key}
				is.key.Column = keep[cell.Column]
				if was, ok := finals[at]; ok && was != is {
					return fmt.Errorf("%w: in Kafka cell %d of shard %d is (epoch %d, %s) and (epoch %d, %s)", errBoundTwice, at.id, at.shard, was.epoch, was.key, is.epoch, is.key)
				}
				finals[at] = is
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return finals, nil
}

// lane is a row's cells of one column.
type lane struct {
	row    uuid.UUID
	column string
}
