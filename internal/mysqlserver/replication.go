package mysqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/cellog/cellog/internal/mysqlconn"
	"github.com/cellog/cellog/internal/mysqlreplica"
)

// Follow makes this server a minion of master, by GTID, with an account that
// has REPLICATION SLAVE, and starts replication. A server that follows already
// is re-pointed. Whether it works is for Replication to say.
func (s *Server) Follow(ctx context.Context, master *Server, user, password string) error {
	return s.as(func(db *sql.DB) error {
		return mysqlreplica.Follow(ctx, db, mysqlreplica.Source{Addr: master.Addr(), User: user, Password: password})
	})
}

// Replication tells how this server follows another one.
func (s *Server) Replication(ctx context.Context) (st mysqlreplica.State, err error) {
	err = s.as(func(db *sql.DB) error {
		st, err = mysqlreplica.Status(ctx, db)
		return err
	})
	return st, err
}

// GTIDs returns the transactions that this server has committed, in its
// flavour's text.
func (s *Server) GTIDs(ctx context.Context) (gtids string, err error) {
	err = s.as(func(db *sql.DB) error {
		gtids, err = mysqlreplica.GTIDs(ctx, db)
		return err
	})
	return gtids, err
}

// WaitForGTIDs returns when this server has applied the transactions that
// GTIDs of another one named, or with an error when ctx ends before.
func (s *Server) WaitForGTIDs(ctx context.Context, gtids string) error {
	return s.as(func(db *sql.DB) error { return mysqlreplica.WaitForGTIDs(ctx, db, gtids) })
}

// as calls f with a pool of root sessions.
func (s *Server) as(f func(*sql.DB) error) error {
	db, err := s.Open("")
	if err != nil {
		return err
	}
	if err := errors.Join(f(db), mysqlconn.Close(db)); err != nil {
		return fmt.Errorf("server in %s: %w", s.dir, err)
	}
	return nil
}
