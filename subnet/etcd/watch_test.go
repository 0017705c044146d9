package etcd

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

const dir = "/coreos.com/network/subnets/"

func hasPeer(node string) func(subnet.Snapshot) bool {
	return func(s subnet.Snapshot) bool {
		return slices.ContainsFunc(s.Peers, func(l subnet.Lease) bool { return l.Node == node })
	}
}

func TestWatchFlannelAndGarbage(t *testing.T) {
	s := startServer(t)
	s.put(t, dir+"10.5.3.0-24", strings.Replace(fmt.Sprintf(flannelValue, 30), "}}", `},"Node":"localhost"}`, 1))
	s.put(t, dir+"10.5.2.0-24", fmt.Sprintf(flannelValue, 20))
	s.put(t, dir+"10.5.1.0-24", strings.Replace(fmt.Sprintf(flannelValue, 10), "}}", `},"Node":"localhost"}`, 1))
	s.put(t, dir+"10.5.4.0-24", fmt.Sprintf(flannelValue, 20)) // it came back with another network config
	s.put(t, dir+"10.5.5.0-24", fmt.Sprintf(flannelValue, 20))
	s.put(t, dir+"garbage", "x")
	s.put(t, dir+"10.9.1.0-24", fmt.Sprintf(flannelValue, 1))
	s.put(t, "/coreos.com/network/subnetsX/10.5.9.0-24", fmt.Sprintf(flannelValue, 90))
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	acquire(t, store, lease(1))
	got := until(t, watch(t, store), "a snapshot", func(subnet.Snapshot) bool { return true })
	var lines []string
	for _, p := range got.Peers {
		lines = append(lines, p.Node+" "+subnetOf(p))
	}
	for _, k := range got.Skips {
		lines = append(lines, k.Node+" "+k.Detail)
	}
	want := `localhost 10.5.3.0/24
192.0.2.20 10.5.2.0/24
192.0.2.10 10.5.1.0/24
subnets/10.5.4.0-24 10.5.4.0/24
subnets/10.5.5.0-24 10.5.5.0/24
garbage key "garbage" is not a subnet: want the form 10.5.52.0-24 or 10.5.52.0-24&fc00::-64
10.9.1.0-24 the record has this node's own public IP`
	if strings.Join(lines, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), want)
	}
}

func TestWatchAfterTheSubnetWasLost(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	was := acquire(t, store, lease(1))
	snapshots := watch(t, store)
	until(t, snapshots, "the own lease", func(s subnet.Snapshot) bool { return s.Local.Equal(was) })
	key := dir + formatName(was)
	// In one transaction, so that the own Store has no chance to come back before the thief. Etcd forbids to
	// touch a key twice in one, so the key moves by way of a wider one.
	c := s.client(t)
	stop, _ := s.get(t, key)
	for {
		if _, err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		resp, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(key), "=", 0)).
			Then(clientv3.OpPut(key, fmt.Sprintf(flannelValue, 66))).Commit()
		if err != nil {
			t.Fatal(err)
		}
		if resp.Succeeded {
			break
		}
	}
	is := until(t, snapshots, "another own lease", func(s subnet.Snapshot) bool {
		return s.Local.Stacks[0].Subnet != was.Stacks[0].Subnet && hasPeer("192.0.2.66")(s)
	})
	if value, _ := s.get(t, dir+formatName(is.Local)); value != stop {
		t.Errorf("the new record says %s, the old one said %s", value, stop)
	}
}

func TestWatchAReservationMadeByHand(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	l := acquire(t, store, lease(1))
	snapshots := watch(t, store)
	until(t, snapshots, "the own lease", func(s subnet.Snapshot) bool { return s.Local.Equal(l) })
	value, _ := s.get(t, dir+formatName(l))
	s.put(t, dir+formatName(l), value) // the same again, without a lease
	s.put(t, dir+"10.5.0.0-16", fmt.Sprintf(flannelValue, 50))
	until(t, snapshots, "a later peer", hasPeer("192.0.2.50"))
	if _, id := s.get(t, dir+formatName(l)); id != 0 {
		t.Error("the reservation has an etcd lease again")
	}
	acquire(t, store, lease(1))
	if _, id := s.get(t, dir+formatName(l)); id != 0 {
		t.Error("the reservation has an etcd lease after acquire")
	}
	s.put(t, dir+formatName(l), "")
	until(t, snapshots, "the own lease", func(s subnet.Snapshot) bool { return s.Local.Equal(l) })
}

func TestWatchRenews(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	store.options.RenewMargin, store.ttl, store.recheck = 5*time.Second, 7*time.Second, 100*time.Millisecond
	l := acquire(t, store, lease(1))
	_, id := s.get(t, dir+formatName(l))
	snapshots := watch(t, store)
	other := s.open(t, Options{Pools: []subnet.Pool{v4}})
	other.ttl = 3 * time.Second
	acquire(t, other, lease(2)) // and never renews
	until(t, snapshots, "the peer", hasPeer("node2"))
	until(t, snapshots, "the end of the peer's lease", func(s subnet.Snapshot) bool { return len(s.Peers) == 0 })
	renewals, before, client := 0, int64(0), s.client(t)
	testwait.Nil(t, "the own lease is renewed three times, and so lives longer than its TTL", func() error {
		r, err := client.TimeToLive(t.Context(), clientv3.LeaseID(id))
		if err != nil {
			return err
		}
		if before > 0 && r.TTL > before {
			renewals++
		}
		if before = r.TTL; renewals < 3 {
			return fmt.Errorf("%d renewals, %d s are left", renewals, r.TTL)
		}
		return nil
	})
	if _, now := s.get(t, dir+formatName(l)); now != id {
		t.Errorf("the own record has etcd lease %x, had %x", now, id)
	}
	if _, err := s.client(t).Revoke(t.Context(), clientv3.LeaseID(id)); err != nil {
		t.Fatal(err)
	}
	until(t, snapshots, "the own lease", func(s subnet.Snapshot) bool { return s.Local.Equal(l) })
	if _, now := s.get(t, dir+formatName(l)); now == id || now == 0 {
		t.Errorf("after its lease was revoked the record has etcd lease %x", now)
	}
}

func TestWatchCompaction(t *testing.T) {
	s := startServer(t)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}})
	acquire(t, store, lease(1))
	v, err := store.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.put(t, dir+"10.5.3.0-24", fmt.Sprintf(flannelValue, 30))
	s.put(t, dir+"10.5.3.0-24", fmt.Sprintf(flannelValue, 31))
	if _, err := s.client(t).Compact(t.Context(), v.rev+2); err != nil {
		t.Fatal(err)
	}
	events := store.client.Watch(t.Context(), store.dir, clientv3.WithPrefix(), clientv3.WithRev(v.rev+1))
	if err := store.next(t.Context(), events, nil, v); err == nil || !strings.Contains(err.Error(), "compacted") {
		t.Errorf("a watch from a compacted revision: got %v", err)
	}
	until(t, watch(t, store), "the peer", hasPeer("192.0.2.31"))
}

// TestWatchSurvivesAnEmptyEtcd replaces etcd's data: a watch would wait for a revision of the old one.
func TestWatchSurvivesAnEmptyEtcd(t *testing.T) {
	s := startServer(t)
	for range 20 {
		s.put(t, "/elsewhere", "x") // so that the revision is high
	}
	reports := make(chan error, 1000)
	store := s.open(t, Options{Pools: []subnet.Pool{v4}, Report: func(err error) { reports <- err }})
	store.recheck = 200 * time.Millisecond
	l := acquire(t, store, lease(1))
	snapshots := watch(t, store)
	until(t, snapshots, "the own lease", func(s subnet.Snapshot) bool { return s.Local.Equal(l) })
	s.end()
	s.restart(t, t.TempDir())
	observer := s.open(t, Options{Pools: []subnet.Pool{v4}})
	until(t, watch(t, observer), "the node's record", hasPeer("node1"))
	s.put(t, dir+"10.5.3.0-24", fmt.Sprintf(flannelValue, 30))
	until(t, snapshots, "a new peer", hasPeer("192.0.2.30"))
	if len(reports) == 0 {
		t.Error("nothing was reported")
	}
}
