package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/twill-net/twill/lab/controlplane"
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
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: l.underlay.Dial}}
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
	return s.client(func(c *clientv3.Client) error {
		_, err := c.Put(ctx, etcdPrefix+"/config", string(conf))
		return err
	})
}

func (s *etcdStore) flags(*Node) []string { return []string{"--etcd-endpoints=" + s.lab.etcdURL()} }

// register keeps the site's subnets for the node: a key without an etcd lease, which its agent finds by its address.
func (s *etcdStore) register(ctx context.Context, n *Node) error {
	var names []string
	record := map[string]string{"BackendType": s.lab.spec.Backend}
	for i, p := range n.site().Subnets {
		names = append(names, strings.ReplaceAll(p.String(), "/", "-"))
		record[map[bool]string{true: "PublicIP", false: "PublicIPv6"}[p.Addr().Is4()]] = n.Underlay()[i].String()
	}
	if len(names) == 0 {
		return nil
	}
	value, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return s.client(func(c *clientv3.Client) error {
		_, err := c.Put(ctx, etcdPrefix+"/subnets/"+strings.Join(names, "&"), string(value))
		return err
	})
}

// forget deletes the keys that hold one of the node's subnets.
func (s *etcdStore) forget(ctx context.Context, n *Node) error {
	return s.client(func(c *clientv3.Client) error {
		kvs, err := c.Get(ctx, etcdPrefix+"/subnets/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range kvs.Kvs {
			// The value names the addresses of the node, and the quotes end them.
			for _, a := range n.Underlay() {
				if strings.Contains(string(kv.Value), `"`+a.String()+`"`) {
					if _, err := c.Delete(ctx, string(kv.Key)); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// client calls f with a client whose connections are opened on the router.
func (s *etcdStore) client(f func(*clientv3.Client) error) error {
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return s.lab.underlay.Dial(ctx, "tcp", address)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{s.lab.etcdURL()},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial), grpc.WithNoProxy()},
	})
	if err != nil {
		return fmt.Errorf("open etcd: %w", err)
	}
	defer c.Close()
	if err := f(c); err != nil {
		return fmt.Errorf("write to etcd: %w", err)
	}
	return nil
}
