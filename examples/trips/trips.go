// Package trips holds the index definitions of the example datastore, so that
// the demo can bring them along.
//
// It promises nothing but its files: Schemas is the folder schemas, for
// `cellog dev --schemas examples/trips/schemas` as well. It has no neighbours
// that could fail.
package trips

import (
	"embed"
	"io/fs"
)

//go:embed schemas
var files embed.FS

// Schemas is the folder of index definitions.
func Schemas() fs.FS {
	sub, err := fs.Sub(files, "schemas")
	if err != nil {
		panic(err) // the folder is part of the binary
	}
	return sub
}
