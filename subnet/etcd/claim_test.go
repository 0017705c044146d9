package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

var (
	v4 = subnet.Pool{Network: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 24,
		Min: netip.MustParseAddr("10.5.0.0"), Max: netip.MustParseAddr("10.5.3.0")}
	v6 = subnet.Pool{Network: netip.MustParsePrefix("fc00::/48"), SubnetLen: 64,
		Min: netip.MustParseAddr("fc00::"), Max: netip.MustParseAddr("fc00:0:0:3::")}
)

func lease(i int) subnet.Lease {
	return subnet.Lease{Node: fmt.Sprintf("node%d", i), Backend: "vxlan",
		Stacks: []subnet.Stack{stack("", fmt.Sprintf("192.0.2.%d", i), `{"VNI":1}`)}}
}

func dual(i int) subnet.Lease {
	l := lease(i)
	l.Stacks = append(l.Stacks, stack("", fmt.Sprintf("2001:db8::%d", i), `{"VNI":1}`))
	return l
}

func acquire(t *testing.T, s *Store, want subnet.Lease) subnet.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	l, err := s.Acquire(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func subnetOf(l subnet.Lease) string { return l.Stacks[0].Subnet.String() }

const flannelValue = `{"PublicIP":"192.0.2.%d","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1}}`

func TestAcquireConfig(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{})
	_, err := store.Acquire(t.Context(), lease(1))
	if want := `etcd key /coreos.com/network/config is missing: set it with etcdctl put /coreos.com/network/config '{`; err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("got %v, want %s", err, want)
	}
	s.put(t, "/coreos.com/network/config", `{"Network": "10.77.0.0/16", "Backend": {"Type": "host-gw"}, `)
	if _, err = store.Config(t.Context()); err == nil || !strings.Contains(err.Error(), "malformed JSON at line 1") {
		t.Errorf("a malformed config: got %v", err)
	}
	s.put(t, "/coreos.com/network/config", `{"Network": "10.77.0.0/16", "Backend": {"Type": "host-gw"}}`)
	config, err := store.Config(t.Context())
	if err != nil || config.Backend != "host-gw" {
		t.Errorf("got %+v %v", config, err)
	}
	l := acquire(t, store, lease(1))
	if !config.Pools[0].Contains(l.Stacks[0].Subnet) {
		t.Errorf("got %s, want a subnet of 10.77.0.0/16", subnetOf(l))
	}
	if _, id := s.get(t, "/coreos.com/network/subnets/"+formatName(l)); id == 0 {
		t.Error("the key has no etcd lease")
	} else if ttl, err := s.client(t).TimeToLive(t.Context(), clientv3.LeaseID(id)); err != nil || ttl.GrantedTTL != 24*3600 {
		t.Errorf("the etcd lease is %+v %v, want one of 24 h", ttl, err)
	}
}

func TestAcquireTakesOver(t *testing.T) {
	s := startServer(t)
	wish := func(l subnet.Lease, text string) subnet.Lease {
		l.Stacks[0].Subnet = netip.MustParsePrefix(text)
		return l
	}
	p4 := []subnet.Pool{v4}
	for i, tc := range []struct {
		name    string
		records map[string]string
		pools   []subnet.Pool
		want    subnet.Lease
		subnet  string // empty: any that is free
		gone    string // a key that must be gone
		stays   string // a key that must be there, without an etcd lease
	}{
		{name: "flannel's record of the same IP, before the wish", records: map[string]string{"10.5.2.0-24": fmt.Sprintf(flannelValue, 1)},
			want: wish(lease(1), "10.5.3.0/24"), pools: p4, subnet: "10.5.2.0/24", stays: "10.5.2.0-24"},
		{name: "the wish when it is free", want: wish(lease(1), "10.5.3.0/24"), pools: p4, subnet: "10.5.3.0/24"},
		{name: "not the wish when it is used", records: map[string]string{"10.5.3.0-24": fmt.Sprintf(flannelValue, 2)},
			want: wish(lease(1), "10.5.3.0/24"), pools: p4},
		{name: "not the wish when a malformed record has it", records: map[string]string{"10.5.3.0-24": ""},
			want: wish(lease(1), "10.5.3.0/24"), pools: p4, stays: "10.5.3.0-24"},
		{name: "not the wish when a dual-stack record has it", records: map[string]string{"10.5.3.0-24&fc00::-64": fmt.Sprintf(flannelValue, 2)},
			want: wish(lease(1), "10.5.3.0/24"), pools: p4},
		{name: "not the wish when it is outside", want: wish(lease(1), "10.9.3.0/24"), pools: p4},
		{name: "the only one that is free", records: map[string]string{"10.5.0.0-23": "", "10.5.3.0-24": ""}, want: lease(1), pools: p4, subnet: "10.5.2.0/24"},
		{name: "a reservation outside of the range", records: map[string]string{"10.5.99.0-24": fmt.Sprintf(flannelValue, 1)},
			want: lease(1), pools: p4, subnet: "10.5.99.0/24", stays: "10.5.99.0-24"},
		{name: "not a reservation outside of the network", records: map[string]string{"10.9.99.0-24": fmt.Sprintf(flannelValue, 1)},
			want: lease(1), pools: p4, stays: "10.9.99.0-24"},
		{name: "the IPv4 part of a node that becomes dual-stack", records: map[string]string{"10.5.2.0-24": fmt.Sprintf(flannelValue, 1)},
			want: dual(1), pools: []subnet.Pool{v4, v6}, subnet: "10.5.2.0/24", stays: "10.5.2.0-24"},
		{name: "the record of a node whose IP changed, by name and wish",
			records: map[string]string{"10.5.2.0-24": strings.Replace(fmt.Sprintf(flannelValue, 7), "}}", `},"Node":"node1"}`, 1)},
			want:    wish(lease(1), "10.5.2.0/24"), pools: p4, subnet: "10.5.2.0/24"},
		{name: "not the record of another node with the same name",
			records: map[string]string{"10.5.2.0-24": strings.Replace(fmt.Sprintf(flannelValue, 7), "}}", `},"Node":"node1"}`, 1)},
			want:    lease(1), pools: p4, stays: "10.5.2.0-24"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := fmt.Sprintf("/takeover/%d", i)
			before := map[netip.Prefix]bool{}
			for name, value := range tc.records {
				s.put(t, dir+"/subnets/"+name, value)
				subnets, err := parseName(name)
				if err != nil {
					t.Fatal(err)
				}
				before[subnets[0]] = true
			}
			got := acquire(t, s.open(t, Options{Prefix: dir, Pools: tc.pools}), tc.want)
			if tc.subnet != "" && subnetOf(got) != tc.subnet || tc.subnet == "" && before[got.Stacks[0].Subnet] {
				t.Errorf("got %s, want %q", subnetOf(got), tc.subnet)
			}
			if value, _ := s.get(t, dir+"/subnets/"+formatName(got)); !strings.Contains(value, `"Node":"node1"`) {
				t.Errorf("published %s", value)
			}
			if tc.stays != "" {
				if _, id := s.get(t, dir+"/subnets/"+tc.stays); id != 0 {
					t.Errorf("the reservation %s has an etcd lease now", tc.stays)
				}
			}
		})
	}
}

func TestAcquireGivesUpALeaseThatDoesNotFit(t *testing.T) {
	s := startServer(t)
	was := acquire(t, s.open(t, Options{Pools: []subnet.Pool{v4}}), lease(1))
	is := acquire(t, s.open(t, Options{Pools: []subnet.Pool{v4, v6}}), dual(1))
	if is.Stacks[0].Subnet != was.Stacks[0].Subnet {
		t.Errorf("the IPv4 subnet became %s, it was %s", subnetOf(is), subnetOf(was))
	}
	resp, err := s.client(t).Get(t.Context(), "/coreos.com/network/subnets/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 {
		t.Errorf("got %+v %v, want one key", resp, err)
	}
}

// TestAcquireOfOtherFamilies: who asks for families that the network does not have gets nothing, and loses nothing.
func TestAcquireOfOtherFamilies(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	l := acquire(t, store, lease(1))
	before, _ := s.get(t, dir+formatName(l))
	if got, err := store.Acquire(t.Context(), dual(1)); err == nil || !strings.Contains(err.Error(), "has 2 addresses: want 1") {
		t.Errorf("got %+v, %v", got, err)
	}
	if after, _ := s.get(t, dir+formatName(l)); after != before || store.own.Load().lease.Node != "node1" {
		t.Errorf("the record became %s, it was %s", after, before)
	}
}

// TestLastOfFlannel: flannel's record of this address is this node's, under this node's name.
func TestLastOfFlannel(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	if l, ok, err := store.Last(t.Context(), lease(1)); ok || err != nil {
		t.Errorf("without a record: %+v %t %v", l, ok, err)
	}
	s.put(t, dir+"10.5.2.0-24", fmt.Sprintf(flannelValue, 1))
	s.put(t, dir+"10.5.3.0-24", fmt.Sprintf(flannelValue, 2))
	if l, ok, err := store.Last(t.Context(), lease(1)); !ok || err != nil || l.Node != "node1" || subnetOf(l) != "10.5.2.0/24" {
		t.Errorf("got %+v %t %v", l, ok, err)
	}
}

// TestOneClaimAtATime: who gives up waiting for its turn leaves the turn to who has it.
func TestOneClaimAtATime(t *testing.T) {
	store, err := New(Options{Endpoints: []string{"http://127.0.0.1:1"}, Pools: []subnet.Pool{v4}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	store.own.Store(&owned{lease: lease(1)})
	store.claiming <- struct{}{} // somebody's turn
	for name, f := range map[string]func() error{
		"claim": func() error { return store.claim(ctx, lease(1)) }, "reclaim": func() error { return store.reclaim(ctx) },
	} {
		if err := f(); !errors.Is(err, context.Canceled) || len(store.claiming) != 1 {
			t.Errorf("%s: %v, and the other's turn goes on: %t", name, err, len(store.claiming) == 1)
		}
	}
	<-store.claiming
	_ = store.claim(ctx, lease(1))
	if len(store.claiming) != 0 {
		t.Error("the turn did not end")
	}
}

// TestUsed: of the subnets that are taken, those of the record that is given up are free.
func TestUsed(t *testing.T) {
	records := []record{{name: "a", subnets: []netip.Prefix{v4.Subnet(0), v6.Subnet(0)}}, {name: "b", subnets: []netip.Prefix{v4.Subnet(1)}}}
	store := &Store{pools: []subnet.Pool{v4, v6}}
	if got := store.used(records, "b"); len(got) != 2 || got[0] != v4.Subnet(0) || got[1] != v6.Subnet(0) {
		t.Errorf("but b: %v", got)
	}
	if got := store.used(records, ""); len(got) != 3 {
		t.Errorf("of all: %v", got)
	}
}

// TestSameEtcd: another cluster, or a revision of the past, is another etcd; a later one is not.
func TestSameEtcd(t *testing.T) {
	v := &view{rev: 5, cluster: 7}
	for _, test := range []struct {
		cluster uint64
		rev     int64
		same    bool
	}{{7, 5, true}, {7, 6, true}, {7, 4, false}, {8, 5, false}} {
		if err := sameEtcd(v, &etcdserverpb.ResponseHeader{ClusterId: test.cluster, Revision: test.rev}); (err == nil) != test.same {
			t.Errorf("cluster %d at %d: %v", test.cluster, test.rev, err)
		}
	}
}

// TestSameNode: one address in common is enough.
func TestSameNode(t *testing.T) {
	other := dual(2)
	other.Stacks[1] = dual(1).Stacks[1]
	for _, test := range []struct {
		a, b subnet.Lease
		same bool
	}{{lease(1), lease(1), true}, {lease(1), lease(2), false}, {dual(1), lease(1), true}, {dual(1), dual(2), false}, {dual(1), other, true}, {lease(1), other, false}} {
		if sameNode(test.a, test.b) != test.same || sameNode(test.b, test.a) != test.same {
			t.Errorf("%+v and %+v are the same: %t", test.a, test.b, !test.same)
		}
	}
}

func TestAcquireFull(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	s.put(t, "/coreos.com/network/subnets/10.5.0.0-22", "")
	_, err := store.Acquire(t.Context(), lease(1))
	if err == nil || !strings.Contains(err.Error(), "all 4 subnets of 10.5.0.0/16 are in use") {
		t.Errorf("got %v", err)
	}
}

// TestConfirm races nodes for an IPv6 subnet under different keys, which no transaction on one key sees.
func TestConfirm(t *testing.T) {
	s := startServer(t)
	leases, errs := make([]subnet.Lease, 4), make([]error, 4)
	wide := v4
	wide.Max = netip.MustParseAddr("10.5.255.0")
	var group sync.WaitGroup
	for i := range leases {
		want := dual(i + 1)
		want.Stacks[0].Subnet = netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", 100+i))
		want.Stacks[1].Subnet = netip.MustParsePrefix("fc00:0:0:2::/64")
		store := s.open(t, Options{Pools: []subnet.Pool{wide, v6}})
		group.Go(func() { leases[i], errs[i] = store.Acquire(t.Context(), want) })
	}
	group.Wait()
	seen := map[netip.Prefix]bool{}
	for i, l := range leases {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if seen[l.Stacks[1].Subnet] {
			t.Errorf("two nodes have %s", l.Stacks[1].Subnet)
		}
		seen[l.Stacks[1].Subnet] = true
	}
}

func TestOptionsErrors(t *testing.T) {
	bad := t.TempDir() + "/bad.pem"
	if err := os.WriteFile(bad, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := []string{"http://127.0.0.1:1"}
	for _, tc := range []struct {
		options Options
		want    string
	}{
		{Options{}, "etcd-endpoints is empty"},
		{Options{Endpoints: []string{"127.0.0.1:2379"}}, "an etcd endpoint is not a URL: want one such as http://127.0.0.1:2379"},
		{Options{Endpoints: []string{"http://root:secret@127.0.0.1:2379"}}, "etcd endpoint http://root:xxxxx@127.0.0.1:2379: want a URL"},
		{Options{Endpoints: url, Username: "root"}, `only one of etcd-username "root" and etcd-password is set`},
		{Options{Endpoints: url, Password: "secret"}, `only one of etcd-username "" and etcd-password is set`},
		{Options{Endpoints: url, CertFile: "x.pem"}, `only one of etcd-keyfile "" and etcd-certfile "x.pem" is set`},
		{Options{Endpoints: url, RenewMargin: 24 * time.Hour}, "lease renew margin 24h0m0s: want 1 to 1439 minutes"},
		{Options{Endpoints: url, RenewMargin: 59 * time.Second}, "lease renew margin 59s: want 1 to 1439 minutes"},
		{Options{Endpoints: url, CAFile: bad}, "holds no certificate: want PEM"},
		{Options{Endpoints: url, CAFile: bad + "x"}, "read etcd-cafile"},
		{Options{Endpoints: url, CertFile: bad, KeyFile: bad}, "read etcd-certfile and etcd-keyfile"},
	} {
		s, err := New(tc.options)
		if err == nil {
			_, err = s.Acquire(t.Context(), lease(1))
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v:\n got %v\nwant %s", tc.options, err, tc.want)
		}
	}
}
