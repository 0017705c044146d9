package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/netstate"
)

const (
	etcdPort    = 2379
	etcdPrefix  = "/coreos.com/network"
	pollServers = 5 * time.Millisecond
)

// etcdStore is an etcd of the lab's own, in a process on the router.
type etcdStore struct{ lab *Lab }

func (l *Lab) etcdURL() string {
	return "http://" + netip.AddrPortFrom(l.routerAddr(), etcdPort).String()
}

func (l *Lab) runEtcd(ctx context.Context) error {
	dir := filepath.Join(l.dir, "etcd")
	command, err := controlplane.EtcdCommand(dir, l.etcdURL())
	if err != nil {
		return err
	}
	client := l.onRouter()
	return l.runServer(ctx, etcdServer, dir, command, func(ctx context.Context) error {
		return controlplane.EtcdReady(ctx, client, l.etcdURL())
	})
}

func (s *etcdStore) start(ctx context.Context) error {
	if err := s.lab.runEtcd(ctx); err != nil {
		return err
	}
	conf, err := os.ReadFile(s.lab.netConfFile())
	if err != nil {
		return fmt.Errorf("read the net config: %w", err)
	}
	return s.put(ctx, "/config", conf)
}

func (s *etcdStore) flags(*Node) []string { return []string{"--etcd-endpoints=" + s.lab.etcdURL()} }

// register keeps the site's subnets for the node: a key without an etcd lease, which its agent finds by its address.
func (s *etcdStore) register(ctx context.Context, n *Node) error {
	var names []string
	addresses := map[netstate.Family]string{netstate.IPv4: "PublicIP", netstate.IPv6: "PublicIPv6"}
	record := map[string]string{"BackendType": s.lab.spec.Backend}
	for i, p := range n.site().Subnets {
		names = append(names, strings.ReplaceAll(p.String(), "/", "-"))
		record[addresses[netstate.FamilyOf(p.Addr())]] = n.Underlay()[i].String()
	}
	if len(names) == 0 {
		return nil
	}
	value, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return s.put(ctx, "/subnets/"+strings.Join(names, "&"), value)
}

// forget deletes the keys that hold one of the node's subnets.
func (s *etcdStore) forget(ctx context.Context, n *Node) error {
	var all struct{ Kvs []etcdKV }
	const prefix = etcdPrefix + "/subnets/"
	// All keys before the one that follows those with the prefix.
	err := s.call(
		ctx,
		"range",
		map[string][]byte{"key": []byte(prefix), "range_end": []byte(strings.TrimSuffix(prefix, "/") + "0")},
		&all,
	)
	if err != nil {
		return err
	}
	for _, kv := range all.Kvs {
		// The value names the addresses of the node, and the quotes end them.
		for _, a := range n.Underlay() {
			if bytes.Contains(kv.Value, []byte(`"`+a.String()+`"`)) {
				if err := s.call(ctx, "deleterange", etcdKV{Key: kv.Key}, nil); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// etcdKV is a key with its value.
type etcdKV struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

func (s *etcdStore) put(ctx context.Context, key string, value []byte) error {
	return s.call(ctx, "put", etcdKV{[]byte(etcdPrefix + key), value}, nil)
}

// call makes a request of etcd's JSON gateway over a connection that is opened on the router.
func (s *etcdStore) call(ctx context.Context, method string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(
		ctx,
		http.MethodPost,
		s.lab.etcdURL()+"/v3/kv/"+method,
		bytes.NewReader(body),
	)
	if err != nil {
		return err
	}
	resp, err := s.lab.onRouter().Do(req)
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return fmt.Errorf("etcd: %s: %s: %s", method, resp.Status, text)
	}
	if response == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(response)
}

// onRouter returns a client whose connections are opened on the router. None is kept, because it would keep
// the namespace.
func (l *Lab) onRouter() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: l.underlay.Dial}}
}
