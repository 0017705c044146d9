package scale

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// Call is a kind of request to the API server.
type Call string

// The kinds of requests.
const (
	List      Call = "list"       // the metadata of all objects of a kind, or a watch that begins with them
	WholeList Call = "whole list" // all objects of a kind
	Watching  Call = "watch"
	Revision  Call = "revision" // of a kind, to learn whether a watch can be resumed
	Get       Call = "get"      // one object
	Write     Call = "write"
)

// Tally counts calls.
type Tally struct {
	Sent    int // pages of a list behind its first one are not counted
	Refused int // by flow control: status 429
	Failed  int // with any other error
	Bytes   int64
}

// answered is how many were.
func (t Tally) answered() int { return t.Sent - t.Refused - t.Failed }

// Calls counts calls by their kind.
type Calls map[Call]Tally

// Add adds o to c.
func (c Calls) Add(o Calls) {
	for kind, t := range o {
		sum := c[kind]
		c[kind] = Tally{sum.Sent + t.Sent, sum.Refused + t.Refused, sum.Failed + t.Failed, sum.Bytes + t.Bytes}
	}
}

// Since returns what was counted after before.
func (c Calls) Since(before Calls) Calls {
	all := Calls{}
	for kind, t := range c {
		old := before[kind]
		all[kind] = Tally{t.Sent - old.Sent, t.Refused - old.Refused, t.Failed - old.Failed, t.Bytes - old.Bytes}
	}
	return all
}

// Total adds up all kinds.
func (c Calls) Total() (t Tally) {
	for _, o := range c {
		t = Tally{t.Sent + o.Sent, t.Refused + o.Refused, t.Failed + o.Failed, t.Bytes + o.Bytes}
	}
	return t
}

// kindOf tells the kind of a request, and whether it begins one.
func kindOf(r *http.Request) (kind Call, first bool) {
	q := r.URL.Query()
	collection := strings.HasSuffix(r.URL.Path, "/nodes") || strings.HasSuffix(r.URL.Path, "/leases")
	switch {
	case r.Method != http.MethodGet:
		return Write, true
	case q.Get("sendInitialEvents") == "true":
		return List, true
	case q.Get("watch") != "":
		return Watching, true
	case !collection || q.Get("fieldSelector") != "":
		return Get, true
	case q.Get("limit") == "1":
		return Revision, true
	case strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata"):
		return List, q.Get("continue") == ""
	}
	return WholeList, q.Get("continue") == ""
}

// peak is how many things there are, and were at a time.
type peak struct{ now, most atomic.Int64 }

func (p *peak) add() {
	for now := p.now.Add(1); ; {
		most := p.most.Load()
		if now <= most || p.most.CompareAndSwap(most, now) {
			return
		}
	}
}

// callCounter is a transport that counts calls. Bytes are those of answers' bodies, without HTTP's and TLS's own.
type callCounter struct {
	lists *peak // that wait or are answered, of all counters

	mu    sync.Mutex
	calls Calls
}

func (c *callCounter) count(kind Call, t Tally) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.Add(Calls{kind: t})
}

// soFar returns what was counted until now.
func (c *callCounter) soFar() Calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls.Since(nil)
}

// counted is a transport whose calls are counted.
type counted struct {
	http.RoundTripper
	*callCounter
}

// RoundTrip implements http.RoundTripper.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	kind, first := kindOf(r)
	end := func() {}
	if kind == List && r.URL.Query().Get("watch") == "" || kind == WholeList {
		c.lists.add()
		end = sync.OnceFunc(func() { c.lists.now.Add(-1) })
	}
	resp, err := c.RoundTripper.RoundTrip(r)
	var t Tally
	if first {
		t.Sent = 1
	}
	switch {
	case err != nil:
		t.Failed = 1
		end()
	case resp.StatusCode == http.StatusTooManyRequests:
		t.Refused = 1
	case resp.StatusCode >= http.StatusBadRequest:
		t.Failed = 1
	}
	c.count(kind, t)
	if err == nil {
		resp.Body = &countedBody{resp.Body, func(n int) { c.count(kind, Tally{Bytes: int64(n)}) }, end}
	}
	return resp, err
}

// countedBody calls read for what is read, and end when it is closed.
type countedBody struct {
	io.ReadCloser
	read func(n int)
	end  func()
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.read(n)
	}
	return n, err
}

func (b *countedBody) Close() error {
	b.end()
	return b.ReadCloser.Close()
}
