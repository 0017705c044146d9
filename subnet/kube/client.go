package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/subnet/redial"
)

// callTimeout bounds every call but lists and watches: an API server that accepts and then says nothing is an outage.
const callTimeout = 10 * time.Second

// client makes the few calls that the store needs. Of client-go it takes what finds the server and proves who calls;
// the typed clients, the reflector and the types of k8s.io/api would make the agent's file a fifth larger, and each
// heartbeat of a peer twice as dear.
type client struct {
	http   *http.Client
	base   *url.URL      // of the server; it may have a path
	limit  *rate.Limiter // of calls of which a loop could make many
	dialer *redial.Dialer
}

func newClient(cfg *rest.Config) (*client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = "twilld"
	// A list of thousands of Nodes costs the API server a second of processor time to compress.
	cfg.DisableCompression = true
	dialer := &redial.Dialer{}
	cfg.Dial = dialer.DialContext
	pingSoon()
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("read the API server's address %q: %w", cfg.Host, err)
	}
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server %q: %w", cfg.Host, err)
	}
	return &client{http: h, base: base, limit: rate.NewLimiter(5, 20), dialer: dialer}, nil
}

// pingSoon has client-go ask after ten silent seconds whether the connection still carries, and give it up after five
// more, instead of 30 and 15; the environment is the only way to say it. An operator's word goes first.
func pingSoon() {
	for name, value := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value)
		}
	}
}

// Media types of the API: https://kubernetes.io/docs/reference/using-api/api-concepts/#alternate-representations-of-resources
const (
	asJSON  = "application/json"
	asProto = "application/vnd.kubernetes.protobuf"

	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
)

// call is one request.
type call struct {
	method, path string // the path from "api/" or "apis/" on
	query        url.Values
	accept       string // empty: asJSON
	kind         string // of the body; empty: asJSON
	body         any    // encoded as JSON, unless it is nil
	free         bool   // not limited in its rate
}

// answerError is an answer that says no.
type answerError struct {
	code    int // of HTTP
	message string
}

func (e *answerError) Error() string { return e.message }

// answered says whether err is an answer with one of these codes.
func answered(err error, codes ...int) bool {
	var a *answerError
	if !errors.As(err, &a) {
		return false
	}
	for _, code := range codes {
		if a.code == code {
			return true
		}
	}
	return false
}

// open makes a call, whose answer the caller has to read and close; what is not an answer of success is an error.
func (c *client) open(ctx context.Context, r call) (io.ReadCloser, error) {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("encode the body of %s %s: %w", r.method, r.path, err)
		}
		body = bytes.NewReader(text)
	}
	if !r.free {
		if err := c.limit.Wait(ctx); err != nil {
			return nil, err
		}
	}
	at := c.base.JoinPath(r.path)
	at.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, at.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", cmp.Or(r.accept, asJSON))
	if body != nil {
		req.Header.Set("Content-Type", cmp.Or(r.kind, asJSON))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, refusalOf(resp)
	}
	return resp.Body, nil
}

// maxStatus bounds what is read of an answer that says no.
const maxStatus = 64 << 10

// refusalOf reads a Status, in JSON or protobuf; a proxy in between may answer anything.
func refusalOf(resp *http.Response) error {
	e := &answerError{code: resp.StatusCode, message: "the answer is " + resp.Status}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	var status struct{ Message string }
	if object, err := opened(body); err == nil {
		status.Message = readStatus(object).message
	} else {
		_ = json.Unmarshal(body, &status)
	}
	if status.Message != "" {
		e.message = status.Message
	}
	return e
}

// do makes a call that is over within callTimeout, and decodes its JSON unless into is nil.
func (c *client) do(ctx context.Context, r call, into any) error {
	body, err := c.read(ctx, r)
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}

// read makes a call that is over within callTimeout, and returns all of the answer.
func (c *client) read(ctx context.Context, r call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := c.open(ctx, r)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

// explain says in a sentence what the API server did not do; errors that waiting does not mend become refusals.
func explain(verb, resource string, err error) error {
	switch {
	case err == nil || refused(err):
		return err
	case answered(err, http.StatusForbidden):
		return refusal{fmt.Errorf("the API server forbids %s on %s: %w", verb, resource, err)}
	case answered(err, http.StatusUnauthorized):
		return refusal{fmt.Errorf("the API server does not know the credentials for %s on %s: %w", verb, resource, err)}
	case answered(err, http.StatusUnprocessableEntity, http.StatusBadRequest, http.StatusNotFound):
		return refusal{fmt.Errorf("%s %s: %w", verb, resource, err)}
	}
	return fmt.Errorf("%s %s: %w", verb, resource, err)
}
