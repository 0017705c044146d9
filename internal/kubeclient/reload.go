package kubeclient

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/twill-net/twill/internal/certs"
)

// Open makes a client of the API server. When that refuses the credentials, or its certificate is refused, the
// configuration is read again: what it says now is used from then on, also for the call that found out.
func Open(s Server) (*Client, error) {
	cfg, err := s.Config()
	if err != nil {
		return nil, err
	}
	c, err := New(cfg)
	if err != nil {
		return nil, err
	}
	first, err := credentialsOf(cfg)
	if err != nil {
		return nil, err
	}
	c.from = &s
	c.HTTP.Transport = &reloading{read: s.Config, connect: c.transport, redial: c.Redial, next: c.HTTP.Transport, used: first}
	return c, nil
}

// Certificates returns those of the configuration as it is now: the caller's own, and the authority's that signs the API
// server's.
func (c *Client) Certificates() (all []certs.Certificate, err error) {
	if c.from == nil {
		return nil, nil
	}
	cfg, err := c.from.Config()
	if err != nil {
		return nil, err
	}
	now, err := credentialsOf(cfg)
	if err != nil {
		return nil, err
	}
	where := cmp.Or(c.from.Kubeconfig, "the pod's service account")
	for _, f := range []struct {
		name string
		data []byte
		read func(string, []byte) (certs.Certificate, error)
	}{{"client certificate of ", now.cert, certs.Of}, {"CA of ", now.ca, certs.OfAll}} {
		if len(f.data) == 0 {
			continue
		}
		one, readErr := f.read(f.name+where, f.data)
		if readErr == nil {
			all = append(all, one)
		}
		err = errors.Join(err, readErr)
	}
	return all, err
}

// transport returns what makes calls with the credentials of cfg, in all else as the client's.
func (c *Client) transport(cfg *rest.Config) (http.RoundTripper, error) {
	changed := rest.CopyConfig(c.cfg)
	from := rest.CopyConfig(cfg)
	changed.TLSClientConfig, changed.BearerToken, changed.BearerTokenFile = from.TLSClientConfig, from.BearerToken, from.BearerTokenFile
	changed.Username, changed.Password, changed.ExecProvider, changed.AuthProvider = from.Username, from.Password, from.ExecProvider, from.AuthProvider
	return rest.TransportFor(changed)
}

// credentials are what a configuration proves who calls with, and what it trusts, with the content of files.
type credentials struct {
	token, user, password string
	ca, cert, key         []byte
}

func credentialsOf(cfg *rest.Config) (credentials, error) {
	whole := rest.CopyConfig(cfg)
	if err := rest.LoadTLSFiles(whole); err != nil {
		return credentials{}, err
	}
	return credentials{whole.BearerToken, whole.Username, whole.Password, whole.CAData, whole.CertData, whole.KeyData}, nil
}

func (c credentials) equal(o credentials) bool {
	return c.token == o.token && c.user == o.user && c.password == o.password &&
		bytes.Equal(c.ca, o.ca) && bytes.Equal(c.cert, o.cert) && bytes.Equal(c.key, o.key)
}

// reloading makes calls with the credentials that the configuration had when it was read last.
type reloading struct {
	read    func() (*rest.Config, error)
	connect func(*rest.Config) (http.RoundTripper, error)
	redial  func()

	mu   sync.Mutex
	next http.RoundTripper
	used credentials
}

// RoundTrip implements http.RoundTripper. A request whose body cannot be sent twice is not repeated.
func (r *reloading) RoundTrip(req *http.Request) (*http.Response, error) {
	next := r.current()
	resp, err := next.RoundTrip(req)
	if !refused(resp, err) {
		return resp, err
	}
	newer, unread := r.reload(next)
	if newer == nil || req.Body != nil && req.GetBody == nil {
		if err != nil && unread != nil {
			err = fmt.Errorf("%w; the configuration cannot be read again: %w", err, unread)
		}
		return resp, err
	}
	again := req.Clone(req.Context())
	if req.GetBody != nil {
		body, bodyErr := req.GetBody()
		if bodyErr != nil {
			return resp, err
		}
		again.Body = body
	}
	if resp != nil {
		resp.Body.Close()
	}
	return newer.RoundTrip(again)
}

// WrappedRoundTripper implements net.RoundTripperWrapper of k8s.io/apimachinery.
func (r *reloading) WrappedRoundTripper() http.RoundTripper { return r.current() }

func (r *reloading) current() http.RoundTripper {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// reload returns what to make the call with instead of old, nil if the configuration says nothing else.
func (r *reloading) reload(old http.RoundTripper) (http.RoundTripper, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next != old { // another call has found out before
		return r.next, nil
	}
	cfg, err := r.read()
	if err != nil {
		return nil, err
	}
	now, err := credentialsOf(cfg)
	if err == nil && len(now.ca) == 0 && len(r.used.ca) > 0 && !cfg.Insecure {
		err = errors.New("it has no CA, and had one before") // in a pod, its file may be away: the system's CAs are others
	}
	if err != nil || now.equal(r.used) {
		return nil, err
	}
	next, err := r.connect(cfg)
	if err != nil {
		return nil, err
	}
	r.next, r.used = next, now
	r.redial() // connections that others hold were opened with the old ones
	return next, nil
}

// refused reports whether the API server does not know who calls, or one of the two refuses the other's certificate.
func refused(resp *http.Response, err error) bool {
	if err == nil {
		return resp.StatusCode == http.StatusUnauthorized
	}
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var unverified *tls.CertificateVerificationError
	var remote *net.OpError // TLS alerts of the other end come as such
	return errors.As(err, &invalid) || errors.As(err, &unknown) || errors.As(err, &unverified) ||
		errors.As(err, &remote) && remote.Op == "remote error"
}
