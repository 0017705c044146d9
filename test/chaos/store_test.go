package chaos

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestStall has the whole store stand still for three seconds while a node wants to join.
func TestStall(t *testing.T) {
	for _, store := range []string{lab.Etcd, lab.Kube} {
		t.Run(store, func(t *testing.T) {
			s := &stand{T: t, lab: labtest.Up(t, lab.Spec{Name: "mishapstall" + store, Store: store, Nodes: 3, Pods: 1})}
			s.watch()
			must(t, s.lab.StallStore())
			t.Cleanup(func() { must(t, s.lab.ResumeStore()) })
			s.harm()
			s.mustHeal() // without the store
			testwait.Pause(t, 3*time.Second, "the store stands still, and nothing comes of it")
			must(t, s.lab.ResumeStore())
			joined, err := s.lab.Join(t.Context())
			must(t, err)
			mustReach(t, s.node().Pods()[0], joined.Pods()[0])
			s.mustHaveLostNothing()
		})
	}
}

// edit is something that somebody does to etcd's keys by hand.
type edit struct {
	says string
	do   func(ctx context.Context, c *clientv3.Client, prefix string) error
	log  string // what the agent says of it
}

var edits = []edit{
	{"keys that are no subnets", put(map[string]string{"/subnets/nonsense": "{}", "/subnets/10.244.300.0-24": "{}", "/subnets/": "x"}), "nonsense"},
	{"a subnet outside the network", put(map[string]string{"/subnets/172.16.0.0-24": `{"PublicIP":"192.168.33.240","BackendType":"vxlan"}`}), "172.16.0.0"},
	{"values that are no JSON", put(map[string]string{"/subnets/10.244.201.0-24": "not json"}), "10.244.201.0"},
	{"a value of a megabyte", put(map[string]string{"/subnets/10.244.202.0-24": `{"PublicIP":"` + strings.Repeat("1", 1<<20) + `"}`}), "… (1048"},
	{"a peer without a MAC", put(map[string]string{"/subnets/10.244.203.0-24": `{"PublicIP":"192.168.33.241","BackendType":"vxlan","BackendData":{}}`}), "node=192.168.33.241"},
	{"a peer that has a node's own address", put(map[string]string{"/subnets/10.244.204.0-24": `{"PublicIP":"192.168.33.101","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:00:04"}}`}), "own public IP"},
	{"everything is compacted", func(ctx context.Context, c *clientv3.Client, prefix string) error {
		r, err := c.Get(ctx, prefix)
		if err == nil {
			_, err = c.Compact(ctx, r.Header.Revision)
		}
		return err
	}, ""},
	{"the cluster's config is deleted", func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Delete(ctx, prefix+"/config")
		return err
	}, ""},
}

func put(kvs map[string]string) func(context.Context, *clientv3.Client, string) error {
	return func(ctx context.Context, c *clientv3.Client, prefix string) error {
		for key, value := range kvs {
			if _, err := c.Put(ctx, prefix+key, value); err != nil {
				return err
			}
		}
		return nil
	}
}

// editEtcd calls f with a client of the lab's etcd, and the prefix of the cluster's keys.
func editEtcd(l *lab.Lab, f func(c *clientv3.Client, prefix string) error) error {
	url, prefix := l.Etcd()
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return l.Router().Dial(ctx, "tcp", address)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{url},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial), grpc.WithNoProxy()},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	return f(c, prefix)
}

// TestEtcdEdits has somebody edit the keys: peers that have nothing to do with it are reached all the time, and
// nodes go on joining.
func TestEtcdEdits(t *testing.T) {
	s := &stand{T: t, lab: labtest.Up(t, lab.Spec{Name: "mishapedits", Store: lab.Etcd, Nodes: 3, Pods: 1})}
	s.watch()
	for _, e := range edits {
		t.Run(e.says, func(t *testing.T) {
			must(t, editEtcd(s.lab, func(c *clientv3.Client, prefix string) error { return e.do(t.Context(), c, prefix) }))
			s.harm()
			s.mustHeal()
			if e.log != "" {
				s.mustLog(e.log)
			}
		})
	}
	s.mustHaveLostNothing()
	for _, n := range s.lab.Nodes() {
		if !n.AgentRunning() {
			t.Errorf("the agent of %s has ended", n.Name)
		}
	}
}

// TestOwnLease deletes the target's lease, and writes another node's address into it: it comes back, and its
// peers go on.
func TestOwnLease(t *testing.T) {
	s := &stand{T: t, lab: labtest.Up(t, lab.Spec{Name: "mishaplease", Store: lab.Etcd, Nodes: 3, Pods: 1})}
	subnet := s.node().Subnets()[0]
	key := "/subnets/" + strings.ReplaceAll(subnet.String(), "/", "-")
	must(t, editEtcd(s.lab, func(c *clientv3.Client, prefix string) error {
		_, err := c.Delete(t.Context(), prefix+key)
		return err
	}))
	mustReach(t, s.third().Pods()[0], s.node().Pods()[0])
	if got := s.node().Subnets()[0]; got != subnet {
		t.Errorf("the node has %s after its key was deleted, want its %s back", got, subnet)
	}
	s.mustOwn(key)
	must(t, editEtcd(s.lab, func(c *clientv3.Client, prefix string) error {
		return put(map[string]string{key: `{"PublicIP":"192.168.33.250","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0e:00:00:00:00:50"}}`})(t.Context(), c, prefix)
	}))
	// Agents only ever create keys that are not there, so that this was a hand: the node's pods keep their addresses.
	s.mustOwn(key)
	mustReach(t, s.third().Pods()[0], s.node().Pods()[0])
}

// mustOwn waits until the target's key is there again.
func (s *stand) mustOwn(key string) {
	s.Helper()
	testwait.Nil(s, key+" is there", func() (missing error) {
		must(s.T, editEtcd(s.lab, func(c *clientv3.Client, prefix string) error {
			r, err := c.Get(s.Context(), prefix+key)
			if err == nil && (len(r.Kvs) != 1 || !strings.Contains(string(r.Kvs[0].Value), s.node().Underlay()[0].String())) {
				missing = fmt.Errorf("it is %v", r.Kvs)
			}
			return err
		}))
		return missing
	})
}
