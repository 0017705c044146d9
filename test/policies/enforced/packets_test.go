// Package enforced holds agents that enforce NetworkPolicies against real packets.
package enforced

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/policytest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// rounds is how many clusters are drawn, each with 1,152 connections between nine pods of three nodes: TCP and UDP, to four
// ports, in both families.
const rounds = 9

// TestPackets gives agents the policies of drawn clusters, one after the other, and tries every connection between their
// pods. What packets do must be what package policy says, which package policies holds against cyclonus.
func TestPackets(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) { packets(t, backend) })
	}
}

func packets(t *testing.T, backend string) {
	t.Helper()
	dir := t.TempDir()
	flags := []string{"--network-policy", "--cluster-network-policy", "--network-policy-file=" + dir}
	l := labtest.Start(t, lab.Spec{Name: "tpol", Nodes: 3, Pods: 3, Family: lab.Dual, Backend: backend, Store: lab.File,
		Sites: map[string]lab.Site{"": {Flags: flags}}})
	e := newEnds(t, l)
	tried, passed := 0, 0
	for seed := range uint64(rounds) {
		w := policytest.New(1000 + seed)
		w.NotIn, w.Cluster = true, int(seed%3)*2
		s := w.Snapshot(3, 6)
		place(s, l)
		write(t, dir, s)
		settled(t, l)
		rules, skips := policy.New(s)
		if len(skips) > 0 {
			t.Fatal(skips)
		}
		var mu sync.Mutex
		var wrong []string
		var group errgroup.Group
		group.SetLimit(150)
		for _, f := range policytest.Flows(s, policy.TCP, policy.UDP) {
			if f.From.Pod == nil || f.To.Pod == nil || f.From.Addr == f.To.Addr {
				continue
			}
			want := rules.Judge(f)
			tried++
			if want.Allowed() {
				passed++
			}
			group.Go(func() error {
				if got := e.try(t.Context(), f, want.Allowed()); got != want.Allowed() {
					mu.Lock()
					defer mu.Unlock()
					egress, ingress := want.Explain(f)
					wrong = append(wrong, fmt.Sprintf("%s (%s → %s) passes: %v; %s; %s", f, f.From.Addr, f.To.Addr, got, egress, ingress))
				}
				return nil
			})
		}
		_ = group.Wait()
		if len(wrong) > 0 {
			t.Fatalf("seed %d: %d connections are wrong, such as\n%s", seed, len(wrong), strings.Join(wrong[:min(9, len(wrong))], "\n"))
		}
	}
	t.Logf("%d connections, %d of them pass", tried, passed)
}

// ends are the lab's pods by their addresses.
type ends struct{ pods map[netip.Addr]*lab.Pod }

// newEnds serves on all ports of all pods.
func newEnds(t *testing.T, l *lab.Lab) ends {
	t.Helper()
	e := ends{map[netip.Addr]*lab.Pod{}}
	for _, n := range l.Nodes() {
		for _, p := range n.Pods() {
			for _, addr := range p.Addrs {
				e.pods[addr] = p
				for _, port := range policytest.Ports {
					for _, network := range []string{"tcp", "udp"} {
						server, err := p.Echo(t.Context(), network, netip.AddrPortFrom(addr, port))
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { server.Close() })
					}
				}
			}
		}
	}
	return e
}

// place gives the drawn pods the addresses of the lab's.
func place(s policy.Snapshot, l *lab.Lab) {
	free := map[string][]*lab.Pod{}
	for _, n := range l.Nodes() {
		free[n.Name] = n.Pods()
	}
	for _, p := range s.Pods {
		p.Addrs, free[p.Node] = free[p.Node][0].Addrs, free[p.Node][1:]
	}
}

// try reports whether a connection passes, and if that is not what is wanted, tries again with more patience.
func (e ends) try(ctx context.Context, f policy.Flow, want bool) bool {
	for _, patience := range []time.Duration{300 * time.Millisecond, 2500 * time.Millisecond, testwait.Limit} {
		once, cancel := context.WithTimeout(ctx, patience)
		err := e.pods[f.From.Addr].Ask(once, strings.ToLower(string(f.Protocol)), netip.AddrPortFrom(f.To.Addr, f.Port))
		cancel()
		if (err == nil) == want {
			return want
		}
	}
	return !want
}

// write writes a snapshot as manifests.
func write(t *testing.T, dir string, s policy.Snapshot) {
	t.Helper()
	type object = map[string]any
	var items []any
	for name, labels := range s.Namespaces {
		items = append(items, object{"kind": "Namespace", "metadata": object{"name": name, "labels": labels}})
	}
	for _, p := range s.Pods {
		ports, ips := []object{}, []object{}
		for _, port := range p.Ports {
			ports = append(ports, object{"name": port.Name, "protocol": port.Protocol, "containerPort": port.Number})
		}
		for _, a := range p.Addrs {
			ips = append(ips, object{"ip": a})
		}
		items = append(items, object{"kind": "Pod", "metadata": object{"name": p.Name, "namespace": p.Namespace, "labels": p.Labels},
			"spec":   object{"nodeName": p.Node, "containers": []object{{"ports": ports}}},
			"status": object{"podIPs": ips}})
	}
	for _, n := range s.Nodes {
		addresses := []object{}
		for _, a := range n.Addrs {
			addresses = append(addresses, object{"type": "InternalIP", "address": a})
		}
		items = append(items, object{"kind": "Node", "metadata": object{"name": n.Name, "labels": n.Labels},
			"status": object{"addresses": addresses}})
	}
	for _, p := range s.Policies {
		items = append(items, p)
	}
	for _, p := range s.ClusterPolicies {
		items = append(items, p)
	}
	text, err := json.Marshal(object{"kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(t.TempDir(), "cluster.json")
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, "cluster.json")); err != nil {
		t.Fatal(err)
	}
}
