package httpapi

import (
	"encoding/json"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// everyRoute are the problems that any request to a datastore may meet.
var everyRoute = []string{"bad_parameter", "bad_datastore", "unknown_datastore", "headers_too_large", "internal", "unavailable"}

// describe makes the OpenAPI document of a table of routes. huma gives the
// document's shape only: its typed handlers cost ten times as much on the way
// of a cell.
func describe(routes []route) ([]byte, error) {
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "cellog", Version: "1", Description: "Immutable cells in, their change log out. " +
			"Every error is a problem document (RFC 9457) with a stable code."},
		Components: &huma.Components{Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)},
		Paths:      map[string]*huma.PathItem{},
	}
	for i := range routes {
		if !routes[i].internal {
			doc.AddOperation(operation(&routes[i]))
		}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

func operation(rt *route) *huma.Operation {
	op := &huma.Operation{Method: rt.method, Path: rt.path, OperationID: rt.id, Summary: rt.doc.summary, Responses: map[string]*huma.Response{}}
	for _, s := range rt.segments {
		if s[0] == '{' {
			op.Parameters = append(op.Parameters, pathParam(s[1:len(s)-1]))
		}
	}
	for _, p := range rt.doc.query {
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: "query", Description: p.about, Schema: &huma.Schema{Type: "string"}})
	}
	if rt.doc.body != "" {
		op.RequestBody = &huma.RequestBody{Required: true, Description: rt.doc.body, Content: map[string]*huma.MediaType{}}
		for _, m := range rt.doc.media {
			op.RequestBody.Content[m] = &huma.MediaType{}
		}
	}
	for status, about := range rt.doc.statuses {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Description: about}
	}
	all := rt.doc.codes
	if len(rt.segments) > 1 {
		all = slices.Concat(all, everyRoute)
	}
	byStatus := map[int][]string{}
	for _, c := range all {
		st := codes[c].status
		byStatus[st] = append(byStatus[st], c)
	}
	for status, cs := range byStatus {
		sort.Strings(cs)
		op.Responses[strconv.Itoa(status)] = &huma.Response{
			Description: "code: " + strings.Join(cs, ", "),
			Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: problemSchema()}},
		}
	}
	return op
}

func pathParam(name string) *huma.Param {
	p := &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: "string"}}
	switch name {
	case "ds":
		p.Description, p.Schema.Pattern = "the datastore", "^[a-z][a-z0-9]{0,30}$"
	case "row_key":
		p.Description, p.Schema.Format = "which thing", "uuid"
	case "column":
		p.Description, p.Schema.Pattern = "which facet of it", "^[A-Za-z][A-Za-z0-9_]{0,63}$"
	case "ref_key":
		p.Description, p.Schema = "which version, or which entry of a list", &huma.Schema{Type: "integer", Format: "int64"}
	case "shard":
		p.Description, p.Schema = "the number of a shard", &huma.Schema{Type: "integer"}
	case "index":
		p.Description = "the name of a secondary index"
	}
	return p
}

func problemSchema() *huma.Schema {
	return &huma.Schema{Type: "object", Required: []string{"title", "status", "code"}, Properties: map[string]*huma.Schema{
		"type": {Type: "string"}, "title": {Type: "string"}, "status": {Type: "integer"}, "detail": {Type: "string"}, "code": {Type: "string"},
	}}
}
