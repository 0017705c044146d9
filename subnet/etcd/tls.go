package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/twill-net/twill/internal/certs"
	"github.com/twill-net/twill/internal/smallfile"
)

// secure reports whether anything asks for TLS.
func (o Options) secure() bool {
	secure := o.KeyFile != "" || o.CAFile != ""
	for _, e := range o.Endpoints {
		secure = secure || strings.HasPrefix(e, "https://")
	}
	return secure
}

// tls reads the files.
func (o Options) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := smallfile.Read(o.CAFile, smallfile.MB)
		if err != nil {
			return nil, fmt.Errorf("read etcd-cafile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd-cafile %s holds no certificate: want PEM", o.CAFile)
		}
	}
	if o.KeyFile != "" {
		cert, err := keyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read etcd-certfile and etcd-keyfile: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return config, nil
}

func keyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := smallfile.Read(certFile, smallfile.MB)
	key, err2 := smallfile.Read(keyFile, smallfile.MB)
	if err := errors.Join(err, err2); err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// Certificates returns those of the flags.
func (s *Store) Certificates() (all []certs.Certificate, err error) {
	for _, f := range []struct {
		flag, path string
		read       func(string, []byte) (certs.Certificate, error)
	}{{"etcd-certfile ", s.options.CertFile, certs.Of}, {"etcd-cafile ", s.options.CAFile, certs.OfAll}} {
		if f.path == "" {
			continue
		}
		data, readErr := smallfile.Read(f.path, smallfile.MB)
		if readErr == nil {
			var c certs.Certificate
			if c, readErr = f.read(f.flag+f.path, data); readErr == nil {
				all = append(all, c)
			}
		}
		err = errors.Join(err, readErr)
	}
	return all, err
}

// files are those of TLS, which whoever rotates certificates replaces while the agent runs.
type files struct {
	options Options

	mu   sync.Mutex
	last *tls.Config // of the files when they were whole
}

// read returns what the files say. While they cannot be used, as while somebody replaces one after the other, it is what
// they said before, with the error.
func (f *files) read() (*tls.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	config, err := f.options.tls()
	if err == nil {
		f.last = config
	}
	return f.last, err
}

// credentials returns what secures connections. It calls reached with nil for each that etcd answers on, or else with the
// reason why it does not.
func (f *files) credentials(reached func(error)) (credentials.TransportCredentials, error) {
	if !f.options.secure() {
		return insecure.NewCredentials(), nil
	}
	config, err := f.read()
	if err != nil {
		return nil, err
	}
	return &handshakes{credentials.NewTLS(config), f, reached}, nil
}

// handshakes reads the files again for each connection.
type handshakes struct {
	credentials.TransportCredentials // of the files at the start
	files                            *files
	reached                          func(error)
}

// Clone implements credentials.TransportCredentials.
func (h *handshakes) Clone() credentials.TransportCredentials { return h }

// ClientHandshake implements credentials.TransportCredentials.
func (h *handshakes) ClientHandshake(ctx context.Context, name string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, unread := h.files.read()
	said := func(err error) error {
		return fmt.Errorf("TLS with %s: %w", raw.RemoteAddr(), errors.Join(err, unread, ended(config)))
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, name, raw)
	if err != nil {
		err = said(err)
		h.reached(err)
		return nil, nil, err
	}
	return &greeted{Conn: conn, heard: func(err error) {
		if err != nil {
			err = said(err)
		}
		h.reached(err)
	}}, info, nil
}

// ended returns an error if the own certificate is not valid any more.
func ended(config *tls.Config) error {
	for _, c := range config.Certificates {
		if leaf := c.Leaf; leaf != nil && time.Now().After(leaf.NotAfter) {
			return fmt.Errorf("etcd-certfile's certificate %q ended at %s", leaf.Subject.CommonName, leaf.NotAfter)
		}
	}
	return nil
}

// greeted is a connection that tells what came of its first Read: with TLS 1.3 a server refuses the client's certificate
// only after the client has ended its handshake.
type greeted struct {
	net.Conn
	heard func(error) // nil: it was called
}

// Read is called by one goroutine, gRPC's reader.
func (g *greeted) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if heard := g.heard; heard != nil {
		g.heard = nil
		heard(err)
	}
	return n, err
}
