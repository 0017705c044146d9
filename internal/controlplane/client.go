package controlplane

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// request is one call as Admin. The method is GET if it is not given, the body is JSON or YAML as its type says.
type request struct {
	method, path string
	contentType  string
	body         []byte
}

// Transport returns a transport that trusts the server, and no other. It connects by dial, or from this network
// namespace if that is nil.
func (s *APIServer) Transport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	return &http.Transport{TLSClientConfig: s.ca.clientConfig(), DialContext: dial}
}

func newHTTP(ca *authority) *http.Client {
	// No proxy from the environment: the server is on this machine.
	return &http.Client{
		Transport: &http.Transport{TLSClientConfig: ca.clientConfig(), ForceAttemptHTTP2: true},
		Timeout:   30 * time.Second,
	}
}

func (a *authority) clientConfig() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{RootCAs: roots}
}

// do returns the body of the answer; one with another status than 2xx is an error that holds the whole body.
func (s *APIServer) do(ctx context.Context, r request) ([]byte, error) {
	req, err := http.NewRequestWithContext(
		ctx,
		cmp.Or(r.method, http.MethodGet),
		s.url+r.path,
		bytes.NewReader(r.body),
	)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.Token(Admin))
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", r.path, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s\n%s", req.Method, r.path, resp.Status, body)
	}
	return body, nil
}
