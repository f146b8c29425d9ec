package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/cellog/cellog"
	"github.com/cellog/cellog/schemas/forward"
)

// maxAnswer bounds what is read of an answer: 1 + 255 + 2 + 1,000 bytes a cell
// at most, 1,000 cells a batch.
const maxAnswer = 2 << 20

// Client carries requests to other workers over connections that it keeps.
type Client struct {
	http      *http.Client
	transport *http.Transport
}

// NewClient returns a Client.
func NewClient() *Client {
	t := &http.Transport{
		DialContext:         (&net.Dialer{}).DialContext,
		MaxIdleConnsPerHost: 1024,
		DisableCompression:  true,
	}
	return &Client{http: &http.Client{Transport: t}, transport: t}
}

// Close closes the connections that are idle.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Peer is another worker at a base URL. It is an ingest.Peer.
type Peer struct {
	client    *Client
	name, url string
}

// Peer returns the worker of a name at a base URL such as http://10.0.0.7:8080.
func (c *Client) Peer(name, url string) *Peer { return &Peer{client: c, name: name, url: url} }

// Write posts the puts and reads the results. sent is false in an error if the
// peer was not reached, or has said that it takes none of the cells.
func (p *Peer) Write(ctx context.Context, datastore string, puts []cellog.Put) (stored []cellog.Stored, errs []error, sent bool, err error) {
	size := 1
	for i := range puts {
		size += 96 + len(puts[i].Column) + len(puts[i].Body)
	}
	body := forward.AppendPuts(make([]byte, 0, size), puts)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+forward.Path(datastore), bytes.NewReader(body))
	if err != nil {
		return nil, nil, false, err
	}
	req.GetBody = nil // never sent twice behind our back
	req.Header.Set("Content-Type", forward.MediaType)
	req.Header.Set(forward.WorkerHeader, p.name)
	resp, err := p.client.http.Do(req)
	if err != nil {
		var op *net.OpError
		return nil, nil, !errors.As(err, &op) || op.Op != "dial", fmt.Errorf("forward to %s: %w", p.url, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, nil, true, fmt.Errorf("forward to %s: %w", p.url, err)
	case resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != forward.MediaType:
		// A worker that takes them answers 200 whatever becomes of each cell;
		// only its 5xx may come after it has begun.
		return nil, nil, resp.StatusCode >= 500 || resp.StatusCode < 400, fmt.Errorf("forward to %s: status %d", p.url, resp.StatusCode)
	}
	results, err := forward.ParseResults(text, len(puts))
	if err != nil {
		return nil, nil, true, fmt.Errorf("forward to %s: %w", p.url, err)
	}
	stored, errs = make([]cellog.Stored, len(puts)), make([]error, len(puts))
	for i := range results {
		stored[i] = results[i].Stored
		if results[i].Err != nil {
			errs[i] = results[i].Err
		}
	}
	return stored, errs, true, nil
}
