// Package kubeclient makes calls to a Kubernetes API server, for agents that run on every node: connections end with
// the address they came from and are checked while idle, errors say in a sentence what the API server did not do, and
// a reason to wait is told once.
package kubeclient

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/twill-net/twill/internal/redial"
)

// CallTimeout bounds every call but lists and watches: an API server that accepts and then says nothing is an outage.
const CallTimeout = 10 * time.Second

// ListTimeout bounds a list.
const ListTimeout = time.Minute

// Client holds what all calls to one API server share.
type Client struct {
	HTTP     *http.Client
	Metadata metadata.Interface

	cfg    *rest.Config
	dialer redial.Dialer
	from   *Server // where the configuration can be read again; nil: nowhere
}

// New connects to nothing yet.
func New(cfg *rest.Config) (*Client, error) {
	c := &Client{cfg: metadata.ConfigFor(cfg)}
	c.cfg.UserAgent = "twilld"
	c.cfg.WarningHandler = rest.NoWarnings{}
	c.cfg.DisableCompression = true // it costs the API server a second for a list of thousands of Nodes
	c.cfg.Dial = c.dialer.DialContext
	if c.cfg.QPS == 0 {
		c.cfg.QPS, c.cfg.Burst = 5, 20
	}
	pingIdleConnections()
	silenceKlog()
	var err error
	if c.HTTP, err = rest.HTTPClientFor(c.cfg); err == nil {
		c.Metadata, err = metadata.NewForConfigAndClient(c.cfg, c.HTTP)
	}
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server %q: %w", cfg.Host, err)
	}
	return c, nil
}

// REST returns a client for the objects of one group of APIs, which does not only read metadata. Content types and the
// serializer are the metadata client's unless change sets others.
func (c *Client) REST(group schema.GroupVersion, change func(*rest.Config)) (*rest.RESTClient, error) {
	cfg := rest.CopyConfig(c.cfg)
	cfg.GroupVersion, cfg.APIPath = &group, "/apis"
	if group.Group == "" {
		cfg.APIPath = "/api"
	}
	change(cfg)
	r, err := rest.RESTClientForConfigAndClient(cfg, c.HTTP)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server %q: %w", cfg.Host, err)
	}
	return r, nil
}

// Redial closes all connections; calls open new ones.
func (c *Client) Redial() { c.dialer.Redial() }

// Server returns where the last connection led, to the API server or a proxy; invalid before there was one.
func (c *Client) Server() netip.AddrPort { return c.dialer.Last() }

// pingIdleConnections makes client-go check a connection after ten silent seconds and close it after five more, instead
// of 30 and 15. The environment is the only way to set this; an operator's values go first.
func pingIdleConnections() {
	for name, value := range map[string]string{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5",
	} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value)
		}
	}
}

// silenceKlog discards what client-go logs: callers report the errors themselves.
var silenceKlog = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })
