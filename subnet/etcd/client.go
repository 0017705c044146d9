package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"

	"github.com/twill-net/twill/subnet"
)

// Options configures a Store. Only Endpoints is required.
type Options struct {
	Endpoints []string // URLs such as http://127.0.0.1:2379
	Prefix    string   // of all keys; default /coreos.com/network

	// TLS: a CA alone is enough to trust an https endpoint; without one the system's CAs are trusted. The files are read
	// again for each connection.
	KeyFile, CertFile, CAFile string
	Username, Password        string

	RenewMargin time.Duration // how long before its end the lease is renewed; default 60 min, less than 24 h
	Pools       []subnet.Pool // to lease from; default: those of <prefix>/config at the first Acquire
	Report      func(error)   // is called with the error of every outage, from any goroutine; may be nil
}

const (
	defaultPrefix = "/coreos.com/network"
	defaultMargin = 60 * time.Minute
	leaseTTL      = 24 * time.Hour // flannel's
	callTimeout   = 5 * time.Second
)

func (o Options) check() error {
	if len(o.Endpoints) == 0 {
		return errors.New("etcd-endpoints is empty: want a URL such as http://127.0.0.1:2379")
	}
	for _, e := range o.Endpoints {
		u, err := url.Parse(e)
		if err != nil {
			// The parser's own error repeats the text, which may hold a password.
			return errors.New("an etcd endpoint is not a URL: want one such as http://127.0.0.1:2379")
		}
		if u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("etcd endpoint %s: want a URL such as http://127.0.0.1:2379, and a user in etcd-username",
				u.Redacted())
		}
	}
	switch {
	case (o.KeyFile == "") != (o.CertFile == ""):
		return fmt.Errorf("only one of etcd-keyfile %q and etcd-certfile %q is set: want both or none", o.KeyFile, o.CertFile)
	case (o.Username == "") != (o.Password == ""):
		return fmt.Errorf("only one of etcd-username %q and etcd-password is set: want both or none", o.Username)
	case o.RenewMargin < time.Minute || o.RenewMargin >= leaseTTL:
		return fmt.Errorf("lease renew margin %s: want 1 to 1439 minutes", o.RenewMargin)
	}
	return nil
}

// connect returns the client, which it makes at the first call; with a password that needs an etcd that answers.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	s.clientMu.Lock()
	defer s.clientMu.Unlock()
	if s.client != nil || s.closed {
		return s.client, closedError(s.closed)
	}
	secure, err := s.files.credentials(s.noteReached)
	if err != nil {
		return nil, err
	}
	timeout := callTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = max(min(timeout, time.Until(end)), time.Millisecond)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: s.options.Endpoints,
		Username:  s.options.Username, Password: s.options.Password,
		DialTimeout: timeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		// Few retries of a call, so that its error tells what is wrong; the Store itself tries again for ever.
		MaxUnaryRetries: 3,
		Logger:          zap.NewNop(),
		// gRPC's own default lets a client sleep for two minutes after etcd is back.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second,
			},
			MinConnectTimeout: callTimeout,
		}), grpc.WithContextDialer(s.dial), grpc.WithTransportCredentials(secure)},
	})
	if err != nil {
		return nil, s.failed("connect", err)
	}
	s.client = client
	return client, nil
}

func (s *Store) dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := s.dialer.DialContext(ctx, "tcp", address)
	if err != nil || !s.options.secure() {
		s.noteReached(err)
	}
	return c, err
}

// noteReached notes why the last connection did not come to be, nil if it did.
func (s *Store) noteReached(err error) {
	switch {
	case err == nil:
		s.unreached.Store(nil)
	case !errors.Is(err, context.Canceled) && !errors.Is(err, net.ErrClosed): // given up on by the client itself
		s.unreached.Store(&err)
	}
}

// Redial implements subnet.Redialer.
func (s *Store) Redial() { s.dialer.Redial() }

func closedError(closed bool) error {
	if closed {
		return errors.New("the etcd store is closed: make a new one")
	}
	return nil
}

// Close ends all connections. The lease stays until its time is over.
func (s *Store) Close() error {
	s.clientMu.Lock()
	defer s.clientMu.Unlock()
	s.closed = true
	if s.client == nil {
		return nil
	}
	err := s.client.Close()
	s.client = nil
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd client: %w", err)
	}
	return nil
}

// outageError is an error that waiting may mend.
type outageError struct{ err error }

func (e outageError) Error() string { return e.err.Error() }
func (e outageError) Unwrap() error { return e.err }

// missingError is the error for a network config that nobody has written yet. Acquire does not wait for one.
type missingError struct{ error }

func (e missingError) Unwrap() error { return e.error }

// failed wraps an error with the operation and the endpoints. It is an outageError unless etcd refused the request.
func (s *Store) failed(operation string, err error) error {
	var answer rpctypes.EtcdError
	answered := errors.As(err, &answer)
	if cause := s.unreached.Load(); cause != nil && !answered && !strings.Contains(err.Error(), (*cause).Error()) {
		err = fmt.Errorf("%w: %w", *cause, err) // which else would not be said
	}
	wrapped := fmt.Errorf("%s at etcd %s: %w", operation, strings.Join(s.options.Endpoints, ","), err)
	// An old auth revision is also InvalidArgument, but goes away with the next token.
	if answered && !errors.Is(err, rpctypes.ErrAuthOldRevision) {
		switch answer.Code() {
		case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
			return wrapped
		}
	}
	return outageError{wrapped}
}

// IsOutage reports whether waiting may mend err: etcd does not answer, or the network config is not there yet.
func IsOutage(err error) bool {
	return errors.As(err, new(outageError)) || errors.As(err, new(missingError))
}

// Config reads the network config from <prefix>/config.
func (s *Store) Config(ctx context.Context) (subnet.Config, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return subnet.Config{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := s.options.Prefix + "/config"
	resp, err := client.Get(ctx, key)
	if err != nil {
		return subnet.Config{}, s.failed("read "+key, err)
	}
	if len(resp.Kvs) == 0 {
		const example = `'{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}'`
		return subnet.Config{}, missingError{
			fmt.Errorf("etcd key %[1]s is missing: set it with etcdctl put %[1]s %[2]s", key, example)}
	}
	config, err := subnet.ParseConfig(resp.Kvs[0].Value)
	if err != nil {
		return subnet.Config{}, fmt.Errorf("etcd key %s: %w", key, err)
	}
	return config, nil
}
