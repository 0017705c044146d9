package aws

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxAnswer is more than tables of ten thousand routes.
const maxAnswer = 8 << 20

var errTooLong = fmt.Errorf("the answer has more than %d MiB", maxAnswer>>20)

// wire returns a client that follows no redirect, because a signed request is for nobody else. A successful answer must
// be of the kind, if one is given.
func wire(t http.RoundTripper, kind string) *http.Client {
	return &http.Client{Timeout: timeout, Transport: guard{t, kind}, CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// guard refuses answers that cannot be the service's.
type guard struct {
	http.RoundTripper
	kind string
}

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	r, err := withOwnBody(r)
	if err != nil {
		return nil, err
	}
	answer, err := g.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	kind := answer.Header.Get("Content-Type")
	switch {
	case answer.StatusCode/100 == 3:
		err = fmt.Errorf("%s redirects to %s", r.URL.Host, shorten(answer.Header.Get("Location")))
	case g.kind != "" && answer.ContentLength == 0:
		err = fmt.Errorf("HTTP %s with an empty answer", shorten(answer.Status))
	case g.kind != "" && answer.StatusCode/100 == 2 && !strings.Contains(kind, g.kind):
		err = fmt.Errorf("HTTP %s, and the answer is %s instead of XML", shorten(answer.Status), shorten(kind))
	}
	if err != nil {
		_ = answer.Body.Close()
		return nil, err
	}
	answer.Body = &limited{answer.Body, maxAnswer}
	return answer, nil
}

// withOwnBody returns the request with a body that can be read to its end, whatever becomes of the SDK's. The SDK closes
// its own when the answer begins, and reports io.EOF to who writes it then; net/http takes that for an error and closes
// the connection under the answer.
func withOwnBody(r *http.Request) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the request to %s: %w", r.URL.Host, err)
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return r, nil
}

// limited is a body that fails when it is too long.
type limited struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLong
	}
	n, err := l.ReadCloser.Read(p[:min(len(p), l.left)])
	l.left -= n
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, err
}

// Close implements io.Closer. Of an answer that is too long the connection may be closed already, which is no news.
func (l *limited) Close() error {
	if err := l.ReadCloser.Close(); err != nil && l.left > 0 {
		return err
	}
	return nil
}
