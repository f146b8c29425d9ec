// Package sqlfiles embeds the DDL of everything cellog keeps in MySQL, as
// goose migrations with one statement each (MySQL commits every DDL statement
// by itself, so a migration of two statements could stop half-way). Each makes
// what is not there yet: one may have been cut off before it was recorded.
//
// It promises that a published file never changes; a change is a new file.
package sqlfiles

import (
	"embed"
	"io/fs"
)

//go:embed shard/*.sql server/*.sql
var files embed.FS

// Shard returns the migrations of one shard's database: entity and shard_log.
// Whoever runs them inserts the one row of shard_log afterwards.
func Shard() fs.FS { return sub("shard") }

// Server returns the migrations of the databases that a server has once,
// cellog_meta and cellog_buffer. Both databases must exist.
func Server() fs.FS { return sub("server") }

func sub(dir string) fs.FS {
	f, err := fs.Sub(files, dir)
	if err != nil {
		panic(err) // the embed directive above guarantees the folder
	}
	return f
}
