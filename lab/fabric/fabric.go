// Package fabric plays a cloud for a lab: a provider's API and metadata service on the underlay's router, whose kernel routes
// as the cloud's routing tables say, and drops what a network interface may not send or get while it does not forward.
package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
)

// Port is where the API and the metadata service are served, by all addresses of the router.
const Port = 80

// Metadata are the addresses at which the providers' machines find their metadata.
var Metadata = []netip.Prefix{netip.MustParsePrefix("169.254.169.254/32"), netip.MustParsePrefix("100.100.100.200/32")}

// control is the path below which a lab tells the fabric what there is.
const control = "/lab/"

// Machine is a node as the cloud knows it.
type Machine struct {
	Name  string       `json:"name"` // of the port on the router, too
	MAC   string       `json:"mac"`
	Addrs []netip.Addr `json:"addrs"`
}

// Kinds returns the backends that the fabric plays the cloud of.
func Kinds() []string { return []string{"ali-vpc", "aws-vpc", "gce"} }

// IsCloud reports whether a backend needs a fabric.
func IsCloud(kind string) bool { return slices.Contains(Kinds(), strings.ToLower(kind)) }

// server is the process on the router.
type server struct {
	*fake.Network
	provider provider
	kernel   *follower
	front    atomic.Pointer[http.Handler]
}

// serve plays the provider from now on, for a network with this block of addresses.
func (s *server) serve(block netip.Prefix) {
	h := s.provider.front(s.Network, block)
	s.front.Store(&h)
}

// Serve plays the cloud of one backend until ctx is done. It runs in the router's network namespace.
func Serve(ctx context.Context, kind string) error {
	p, ok := providers[strings.ToLower(kind)]
	if !ok {
		return fmt.Errorf("fabric of %q: want one of %s", kind, strings.Join(Kinds(), ", "))
	}
	k, err := newFollower()
	if err != nil {
		return err
	}
	defer k.close()
	s := &server{Network: &fake.Network{ID: p.network}, provider: p, kernel: k}
	s.SetTables(fake.Table{ID: table, Main: true})
	changed := make(chan struct{}, 1)
	s.Changed(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	mux := http.NewServeMux()
	s.serve(ownBlock)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { (*s.front.Load()).ServeHTTP(w, r) })
	s.control(mux)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", Port))
	if err != nil {
		return err
	}
	web := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	failed := make(chan error, 1)
	go func() { failed <- web.Serve(l) }()
	defer web.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-changed:
			if err := k.follow(s.NICs(), s.Routes()); err != nil {
				return err
			}
		}
	}
}

// control serves what a lab asks for: machines that come and go, faults, and the routes as somebody else edits them.
func (s *server) control(mux *http.ServeMux) {
	mux.HandleFunc("PUT "+control+"machine", take(func(m Machine) error {
		s.AddNIC(s.provider.nic(m))
		return s.kernel.plug(s.provider.nic(m).ID, m)
	}))
	mux.HandleFunc("DELETE "+control+"machine", take(func(m Machine) error {
		s.RemoveNIC(s.provider.nic(m).ID)
		return nil
	}))
	mux.HandleFunc("PUT "+control+"forwards", take(func(f Forwards) error {
		if !s.SetForwards(s.provider.nic(Machine{Name: f.Machine}).ID, f.On) {
			return fmt.Errorf("machine %q is not there", f.Machine)
		}
		return nil
	}))
	mux.HandleFunc("PUT "+control+"faults", take(func(f fake.Faults) error {
		s.Break(f)
		return nil
	}))
	mux.HandleFunc("PUT "+control+"tables", take(func(more []fake.Table) error {
		s.SetTables(append([]fake.Table{{ID: table, Main: true}}, more...)...)
		return nil
	}))
	mux.HandleFunc("PUT "+control+"block", take(func(block netip.Prefix) error {
		if !block.IsValid() {
			block = ownBlock
		}
		s.serve(block)
		return nil
	}))
	mux.HandleFunc("PUT "+control+"routes", take(func(routes []cloud.Route) error {
		s.Set(routes...)
		return nil
	}))
	mux.HandleFunc("GET "+control+"routes", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(s.Routes()) // the lab may have gone away
	})
}

// take returns what calls f with the body of a request.
func take[T any](f func(T) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var body T
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body)
		if err == nil {
			err = f(body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
}

// Forwards turns a machine's forwarding on or off.
type Forwards struct {
	Machine string `json:"machine"`
	On      bool   `json:"on"`
}

// Client tells a lab's fabric what there is.
type Client struct {
	HTTP *http.Client
	URL  string // http://192.168.33.1
}

// Do makes a request: "PUT faults" with what is to be sent, and where its answer goes, both of which may be nil.
func (c Client) Do(ctx context.Context, what string, send, receive any) error {
	method, path, _ := strings.Cut(what, " ")
	data, err := json.Marshal(send)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+control+path, strings.NewReader(string(data)))
	if err != nil {
		return err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("ask the lab's cloud: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text := make([]byte, 500)
		n, _ := resp.Body.Read(text)
		return errors.New("the lab's cloud: " + what + ": " + strings.TrimSpace(string(text[:n])))
	}
	if receive == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(receive)
}
