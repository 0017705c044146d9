package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

func runtimeConfig(values map[string]any) map[string]any {
	return map[string]any{"runtimeConfig": values}
}

// TestAskedFor asks for addresses and a hardware address in each of the ways that runtimes have.
func TestAskedFor(t *testing.T) {
	for name, ask := range map[string]struct {
		extra map[string]any
		args  string
	}{
		"runtimeConfig": {runtimeConfig(map[string]any{"ips": []string{"10.244.1.77/24", "fd00:10:244:1::77"},
			"mac": "0a:00:00:00:00:77"}), ""},
		"Go case": {runtimeConfig(map[string]any{"IPs": []string{"fd00:10:244:1::77", "10.244.1.77"},
			"Mac": "0A:00:00:00:00:77"}), "IP=10.244.1.5"},
		"args": {map[string]any{"args": map[string]any{"cni": map[string]any{"ips": []string{"10.244.1.77",
			"fd00:10:244:1::77"}, "mac": "0a:00:00:00:00:77"}}}, ""},
		"CNI_ARGS": {nil, "K8S_POD_NAME=a;IP=10.244.1.77,fd00:10:244:1::77;IgnoreUnknown=1;MAC=0a:00:00:00:00:77"},
	} {
		t.Run(name, func(t *testing.T) {
			n, pod := newNode(t, envDual), newNamespace(t)
			n.args = ask.args
			got := addresses(t, n.must("ADD", "a", pod, n.config(ask.extra)))
			if !slices.Equal(got,
				[]netip.Addr{netip.MustParseAddr("10.244.1.77"), netip.MustParseAddr("fd00:10:244:1::77")}) {
				t.Errorf("got %s, want the addresses that were asked for", got)
			}
			link, err := netlinkIn(t, pod).LinkByName("eth0")
			if err != nil || link.Attrs().HardwareAddr.String() != "0a:00:00:00:00:77" {
				t.Errorf("eth0 is %v, %v; want the address that was asked for", link, err)
			}
			mustPing(t, n.ns, got[0])
		})
	}
}

func TestAskedForWrongly(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	n.must("ADD", "other", newNamespace(t), n.config(nil))
	ips := func(ips ...string) []byte { return n.config(runtimeConfig(map[string]any{"ips": ips})) }
	n.mustFail(7, "runtimeConfig.ips is 10.244.1: want an address", "ADD", "a", pod, ips("10.244.1"))
	n.mustFail(7, "address 10.245.1.9 was asked for: want one of 10.244.1.0/24", "ADD", "a", pod, ips("10.245.1.9"))
	n.mustFail(7, "address 10.244.1.1 was asked for: it is the gateway's, want another one of 10.244.1.0/24", "ADD", "a", pod, ips("10.244.1.1"))
	n.mustFail(7, "want at most one of", "ADD", "a", pod, ips("10.244.1.8", "10.244.1.9"))
	n.mustFail(11, "address 10.244.1.2 was asked for and is reserved", "ADD", "a", pod, ips("10.244.1.2"))
	n.mustFail(7, "runtimeConfig.mac is 01:00:00:00:00:01: want a unicast", "ADD", "a", pod,
		n.config(runtimeConfig(map[string]any{"mac": "01:00:00:00:00:01"})))
	n.mustFail(7, "runtimeConfig.bandwidth is", "ADD", "a", pod,
		n.config(runtimeConfig(map[string]any{"bandwidth": map[string]int{"ingressRate": 5}})))
	n.mustFail(7, "runtimeConfig.portMappings is", "ADD", "a", pod,
		n.config(runtimeConfig(map[string]any{"portMappings": []map[string]int{{"hostPort": 70000,
			"containerPort": 1}}})))
	n.args = "IP=fe80::1%eth0"
	n.mustFail(4, "CNI_ARGS IP is fe80::1%eth0: want an address", "ADD", "a", pod, n.config(nil))
	if got := len(n.reserved()); got != 1 {
		t.Errorf("%d reservations, want the other pod's one", got)
	}
}

// TestRuntimeRangesAndDNS gives a pod a range and a resolver of its own.
func TestRuntimeRangesAndDNS(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	out := n.must("ADD", "a", pod, n.config(runtimeConfig(map[string]any{
		"ipRanges": [][]map[string]string{{{"subnet": "10.99.0.0/24", "rangeStart": "10.99.0.50"}}},
		"dns":      map[string]any{"Servers": []string{"10.96.0.10"}, "Searches": []string{"svc.cluster.local"}}})))
	var r struct{ DNS types.DNS }
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if got := addresses(t, out); len(got) != 1 || got[0] != netip.MustParseAddr("10.99.0.50") {
		t.Errorf("got %s, want 10.99.0.50", got)
	}
	if fmt.Sprint(r.DNS) != fmt.Sprint(types.DNS{Nameservers: []string{"10.96.0.10"},
		Search: []string{"svc.cluster.local"}}) {
		t.Errorf("dns %+v", r.DNS)
	}
}

// TestPortIsolation holds that two isolated pods do not reach each other and both reach the node.
func TestPortIsolation(t *testing.T) {
	for _, isolated := range []bool{true, false} {
		n, a, b := newNode(t, envV4), newNamespace(t), newNamespace(t)
		conf := n.config(map[string]any{"portIsolation": isolated})
		n.must("ADD", "a", a, conf)
		result := n.must("ADD", "b", b, conf)
		n.must("CHECK", "b", b, n.config(map[string]any{"portIsolation": isolated, "prevResult": rawJSON(result)}))
		to := addresses(t, result)[0]
		mustPing(t, n.ns, to)
		if !isolated {
			testwait.Until(t, "pod a reaches pod b", func() bool { return reaches(t, a, to) })
		} else if reaches(t, a, to) {
			t.Error("with portIsolation pod a reaches pod b")
		}
	}
}

// reaches reports whether an address can be connected to over TCP within half a second; a refusal comes from there.
func reaches(t *testing.T, from string, to netip.Addr) (reached bool) {
	t.Helper()
	inside(t, from, func() error {
		_, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 9).String(), 500*time.Millisecond)
		reached = errors.Is(err, unix.ECONNREFUSED)
		return nil
	})
	return reached
}

// TestMACSpoofCheck holds that a pod with another hardware address than its own is not heard.
func TestMACSpoofCheck(t *testing.T) {
	for _, on := range []bool{true, false} {
		n, pod := newNode(t, envV4), newNamespace(t)
		n.must("ADD", "a", pod, n.config(map[string]any{"macspoofchk": on}))
		mustPing(t, pod, netip.MustParseAddr("10.244.1.1"))
		h := netlinkIn(t, pod)
		link, err := h.LinkByName("eth0")
		if err == nil {
			err = h.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 0, 7})
		}
		if err != nil {
			t.Fatal(err)
		}
		gateway := netip.MustParseAddr("10.244.1.1")
		if !on {
			testwait.Until(t, "a spoofing pod is heard", func() bool { return reaches(t, pod, gateway) })
		} else if reaches(t, pod, gateway) {
			t.Error("with macspoofchk a spoofing pod is heard")
		}
	}
}

func rules(t *testing.T, ns string) string {
	t.Helper()
	var all []byte
	inside(t, ns, func() error {
		for _, save := range []string{"iptables-save", "ip6tables-save"} {
			out, err := exec.Command(save, "-t", "nat").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", save, err, out)
			}
			all = append(all, out...)
		}
		return nil
	})
	return string(all)
}

var hostPort = map[string]any{"portMappings": []map[string]any{{"HostPort": 8080, "ContainerPort": 80,
	"Protocol": "TCP"}, {"HostPort": 0, "ContainerPort": 9}}}

// TestHostPort reaches a pod through a port of the node, and holds that DEL takes the rules away even when
// the config does not name ports any more.
func TestHostPort(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	result := n.must("ADD", "a", pod, n.config(runtimeConfig(hostPort)))
	withPrev := map[string]any{"runtimeConfig": hostPort, "prevResult": rawJSON(result)}
	n.must("CHECK", "a", pod, n.config(withPrev))
	mustServe(t, n, pod, "10.244.1.1:8080")
	inside(t, n.ns, func() error { return exec.Command("iptables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT").Run() })
	n.mustFail(999, "portmap CHECK", "CHECK", "a", pod, n.config(withPrev))
	n.must("DEL", "a", pod, n.config(nil))
	if left := rules(t, n.ns); strings.Contains(left, "CNI-DN-") {
		t.Errorf("rules are left:\n%s", left)
	}
	n.must("DEL", "a", "", n.config(nil))
	n.mustBeClean(pod)
}

// mustServe listens in the pod at port 80 and connects to it from the node.
func mustServe(t *testing.T, n *node, pod, to string) {
	t.Helper()
	var l net.Listener
	inside(t, pod, func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	})
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
	}()
	inside(t, n.ns, func() error {
		if _, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp", to, testwait.Limit)
		if err != nil {
			return err
		}
		defer conn.Close()
		if got, err := io.ReadAll(conn); string(got) != "hello" {
			return fmt.Errorf("got %q, %v through %s, want hello", got, err, to)
		}
		return nil
	})
}

// TestPortsAtOnce adds the node's first pods with host ports all at once: portmap looks for the chain that
// they share before it makes it, and fails if another portmap was faster.
func TestPortsAtOnce(t *testing.T) {
	n := newNode(t, envDual)
	pods := make([]string, 12)
	for i := range pods {
		pods[i] = newNamespace(t)
	}
	all := func(cmd string) {
		var wg sync.WaitGroup
		for i, pod := range pods {
			ports := map[string]any{"portMappings": []portMapping{{8080 + i, 80, "tcp", ""}}}
			wg.Go(func() {
				if r := n.call(cmd, fmt.Sprintf("pod%d", i), pod, n.config(runtimeConfig(ports))); r.failed != nil {
					t.Errorf("%s pod%d: %v", cmd, i, r.failed)
				}
			})
		}
		wg.Wait()
	}
	all("ADD")
	for i := range pods {
		if made := rules(t, n.ns); !strings.Contains(made, fmt.Sprintf("--dport %d", 8080+i)) {
			t.Errorf("no rule for port %d:\n%s", 8080+i, made)
		}
	}
	all("DEL")
	if left := rules(t, n.ns); strings.Contains(left, "CNI-DN-") {
		t.Errorf("rules are left:\n%s", left)
	}
	n.mustBeClean(pods...)
}

// TestPortsOfFlannelsPod deletes a pod whose rules another portmap made, in a chain with flannel.
func TestPortsOfFlannelsPod(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	result := n.must("ADD", "a", pod, n.config(nil))
	c := exec.Command(filepath.Join(binaries, "portmap"))
	c.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=a", "CNI_NETNS="+pod, "CNI_IFNAME=eth0",
		"CNI_PATH="+binaries)
	conf := map[string]any{"type": "portmap",
		"runtimeConfig": map[string]any{"portMappings": []portMapping{{8080, 80, "tcp",
			""}}}, "prevResult": rawJSON(result)}
	c.Stdin = strings.NewReader(string(n.config(conf)))
	inside(t, n.ns, func() error {
		out, err := c.Output()
		if err != nil {
			return fmt.Errorf("portmap: %w: %s", err, out)
		}
		return nil
	})
	if made := rules(t, n.ns); !strings.Contains(made, "CNI-DN-") {
		t.Fatalf("portmap made no rules:\n%s", made)
	}
	n.must("DEL", "a", "", n.config(runtimeConfig(hostPort)))
	if left := rules(t, n.ns); strings.Contains(left, "CNI-DN-") {
		t.Errorf("rules are left:\n%s", left)
	}
	n.mustBeClean()
}

// TestBandwidth limits a pod in both directions; the limits and their device go with it.
func TestBandwidth(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	limits := runtimeConfig(map[string]any{"Bandwidth": map[string]int{"IngressRate": 8e6, "IngressBurst": 8e5,
		"EgressRate": 8e6, "EgressBurst": 8e5}})
	result := n.must("ADD", "a", pod, n.config(limits))
	limits["prevResult"] = rawJSON(result)
	n.must("CHECK", "a", pod, n.config(limits))
	h := netlinkIn(t, n.ns)
	end, err := h.LinkByName(wire.HostEnd(ipam.Owner{Container: "a", Dev: "eth0"}))
	if err != nil {
		t.Fatal(err)
	}
	qdiscs, err := h.QdiscList(end)
	if err != nil || !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "tbf" }) {
		t.Errorf("%s has the queues %v, %v; want a limit", end.Attrs().Name, qdiscs, err)
	}
	if !slices.ContainsFunc(linksIn(t, n.ns), func(l netlink.Link) bool { return l.Type() == "ifb" }) {
		t.Error("there is no device for the limit of what the pod sends")
	}
	n.must("DEL", "a", pod, n.config(nil))
	for _, l := range linksIn(t, n.ns) {
		if l.Type() == "ifb" {
			t.Errorf("%s is left", l.Attrs().Name)
		}
	}
	n.mustBeClean(pod)
}

func linksIn(t *testing.T, ns string) []netlink.Link {
	t.Helper()
	links, err := netlinkIn(t, ns).LinkList()
	if err != nil {
		t.Fatal(err)
	}
	return links
}

// TestDelegateFails holds that a pod whose host port cannot be had is rolled back whole, the second plugin's
// work and the first one's too.
func TestDelegateFails(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	both := map[string]any{"portMappings": hostPort["portMappings"],
		"bandwidth": map[string]uint64{"ingressRate": 1, "ingressBurst": 1 << 60}}
	n.mustFail(999, "bandwidth ADD: ", "ADD", "a", pod, n.config(runtimeConfig(both)))
	if left := rules(t, n.ns); strings.Contains(left, "CNI-DN-") {
		t.Errorf("rules are left:\n%s", left)
	}
	n.mustBeClean(pod)
	empty := t.TempDir()
	n.path = empty
	n.mustFail(11, "the plugin portmap is missing in CNI_PATH "+empty, "ADD", "a", pod,
		n.config(runtimeConfig(hostPort)))
	n.path = ""
	n.must("DEL", "a", pod, n.config(nil))
	n.mustBeClean(pod)
}

// TestStatusCutOff holds code 51 where pods have lost their gateway.
func TestStatusCutOff(t *testing.T) {
	n := newNode(t, envV4)
	conf := n.config(map[string]any{"cniVersion": "1.1.0"})
	n.must("STATUS", "", "", conf)
	n.must("ADD", "a", newNamespace(t), n.config(nil))
	n.must("STATUS", "", "", conf)
	h := netlinkIn(t, n.ns)
	bridge, err := h.LinkByName("cni0")
	if err == nil {
		err = h.AddrDel(bridge, &netlink.Addr{IPNet: rtnl.IPNet(prefix("10.244.1.1/24"))})
	}
	if err != nil {
		t.Fatal(err)
	}
	n.mustFail(51, "cni0 does not have the pods' gateway address 10.244.1.1/24", "STATUS", "", "", conf)
	if err := h.LinkSetDown(bridge); err != nil {
		t.Fatal(err)
	}
	n.mustFail(51, "cni0 is down", "STATUS", "", "", conf)
	remove(t, filepath.Join(n.dir, "subnet.env"))
	n.mustFail(51, "cni0 is down", "STATUS", "", "", conf)
	deleteLink(t, n.ns, "cni0")
	n.mustFail(50, "does not exist", "STATUS", "", "", conf)
}
