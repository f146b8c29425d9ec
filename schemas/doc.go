// Package schemas is the parent of the shapes that outlive a process: what
// lies on disk and what travels on the wire. The sub-packages hold one shape
// each and never import one another:
//
//   - body: a cell's body as stored (format byte, CRC-32C, payload).
//   - record: a cell as a Kafka record with CloudEvents headers.
//   - position: the records of the positions topics.
//   - heartbeat: the records of the heartbeats topic.
//   - indexdef: the YAML definition of a secondary index.
//   - sqlfiles: the DDL, as migrations.
//   - openapi: the description of the HTTP API.
//
// A published shape never changes its meaning; a new one gets a new number or
// name, and readers refuse what they do not know.
package schemas
