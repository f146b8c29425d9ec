// Package openapi holds the description of the HTTP API, OpenAPI 3.1, for those
// who generate clients. A worker serves the same text at /openapi.json; a test
// of ingest/httpapi, which makes it from its table of routes, compares the two.
package openapi

import _ "embed"

// JSON is the document.
//
//go:embed openapi.json
var JSON []byte
