package chaos

import (
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/lab"
)

// agentUser is the lab's user for agents.
const agentUser = "system:serviceaccount:kube-flannel:twill"

// proxy stands between one agent and the lab's real API server.
type proxy struct {
	*testing.T
	server  *http.Server
	pass    *httputil.ReverseProxy
	mishap  atomic.Pointer[func(http.ResponseWriter, *http.Request, http.Handler)]
	at      netip.AddrPort
	node    *lab.Node
	mu      sync.Mutex
	conns   map[net.Conn]bool
	listens net.Listener
}

// newProxy listens beside the agent, in its namespace.
func newProxy(t *testing.T, l *lab.Lab, n *lab.Node) *proxy {
	api, err := controlplane.OpenAPIServer(filepath.Join(l.Dir(), "apiserver"))
	must(t, err)
	upstream, err := url.Parse(api.URL())
	must(t, err)
	p := &proxy{T: t, node: n, conns: map[net.Conn]bool{}, at: netip.MustParseAddrPort("127.0.0.1:8099")}
	p.pass = &httputil.ReverseProxy{
		FlushInterval: -1, // a watch is a response without an end
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			r.Out.Header.Set("Authorization", "Bearer "+api.Token(agentUser))
		},
		Transport:    api.Transport(n.Dial),
		ErrorLog:     log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	p.open()
	t.Cleanup(p.close)
	return p
}

// open listens.
func (p *proxy) open() {
	var err error
	p.listens, err = p.node.Listen(p.Context(), p.at)
	must(p.T, err)
	p.server = &http.Server{Handler: p, ConnState: p.track}
	go func(s *http.Server, l net.Listener) { _ = s.Serve(l) }(p.server, p.listens)
}

// close ends the listener and all connections, as a server that is killed does.
func (p *proxy) close() {
	_ = p.server.Close()
	p.cut()
}

func (p *proxy) track(c net.Conn, s http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == http.StateClosed || s == http.StateHijacked {
		delete(p.conns, c)
	} else {
		p.conns[c] = true
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// ServeHTTP passes requests on, unless there is a mishap.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m := p.mishap.Load(); m != nil {
		(*m)(w, r, p.pass)
		return
	}
	p.pass.ServeHTTP(w, r)
}

// kubeconfig is a file that leads to the proxy.
func (p *proxy) kubeconfig() string {
	type object = map[string]any
	data, err := json.Marshal(object{"apiVersion": "v1", "kind": "Config", "current-context": "a",
		"clusters": []object{{"name": "a", "cluster": object{"server": "http://" + p.at.String()}}},
		"users":    []object{{"name": "a", "user": object{}}},
		"contexts": []object{{"name": "a", "context": object{"cluster": "a", "user": "a"}}}})
	must(p.T, err)
	path := filepath.Join(p.TempDir(), "kubeconfig")
	must(p.T, os.WriteFile(path, data, 0o600))
	return path
}
