//go:build soak

package guest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
)

// leaseTime is for how many seconds a server gives an address. Its client renews it when it is told to: by itself, udhcpc
// does so after minutes.
const leaseTime = 600

// dhcp is a NIC that has its address and a default route from a DHCP server.
type dhcp struct {
	dir            string
	host           host.Host // the server's
	server, client host.Process
	has            string // the address that the server gives
}

// The addresses of the server, and those that it gives one after the other.
const dhcpServer, dhcpFirst, dhcpSecond = "172.28.0.1", "172.28.0.50", "172.28.0.60"

// client is what udhcpc runs when something becomes of the lease.
const client = `#!/bin/sh
case "$1" in
deconfig) ip -4 addr flush dev "$interface" ;;
bound | renew)
	ip -4 addr replace "$ip/$mask" dev "$interface" valid_lft "$lease" preferred_lft "$lease"
	ip -4 route replace default via "$router" dev "$interface" metric 800 ;;
esac
`

func (g *guest) dynamic() string {
	pod, err := g.node.AddNamespace("dhcp")
	g.must(err)
	g.run("ip link add dh0 type veth peer name eth0 netns "+pod.Host.Name, "ip link set dh0 up")
	for _, c := range []string{"ip link set lo up", "ip link set eth0 up", "ip addr add " + dhcpServer + "/24 dev eth0"} {
		_, err := pod.Exec(g.Context(), strings.Fields(c)...)
		g.must(err)
	}
	d := &dhcp{dir: g.TempDir(), host: pod.Host, has: dhcpFirst}
	g.dhcp = d
	script := filepath.Join(d.dir, "client")
	g.must(os.WriteFile(script, []byte(client), 0o755))
	g.serve(dhcpFirst)
	d.client = g.background(g.node.Host, filepath.Join(d.dir, "client.log"), "udhcpc", "-f", "-i", "dh0", "-s", script, "-t", "20", "-T", "1", "-A", "1")
	g.awaitLease(dhcpFirst, 1)
	g.probe("the DHCP server", g.node.Host, netip.MustParseAddr(dhcpServer))
	return fmt.Sprintf("%s, for %d seconds", dhcpFirst, leaseTime)
}

// serve starts a server that gives one address.
func (g *guest) serve(addr string) {
	d := g.dhcp
	conf := filepath.Join(d.dir, "server.conf")
	g.must(os.WriteFile(conf, fmt.Appendf(nil, "start %s\nend %s\ninterface eth0\nlease_file %s\npidfile %s\noption subnet 255.255.255.0\n"+
		"option router %s\noption lease %d\nmin_lease 1\n", addr, addr, filepath.Join(d.dir, "leases-"+addr), filepath.Join(d.dir, "pid"),
		dhcpServer, leaseTime), 0o644))
	g.must(os.WriteFile(filepath.Join(d.dir, "leases-"+addr), nil, 0o644))
	d.server = g.background(d.host, filepath.Join(d.dir, "server.log"), "udhcpd", "-f", conf)
}

// move has the server give another address.
func (g *guest) move() {
	g.must(g.dhcp.server.Kill())
	g.serve(dhcpSecond)
	g.dhcp.has = dhcpSecond
	g.renew()
}

// renew has the client ask for its address again, and waits until it has one.
func (g *guest) renew() {
	g.Helper()
	if g.dhcp == nil {
		return
	}
	had := strings.Count(g.dhcp.log(), obtained)
	g.must(g.dhcp.client.Signal(unix.SIGUSR1))
	g.awaitLease(g.dhcp.has, had+1)
}

// obtained is what the client says of each lease.
const obtained = " obtained from "

func (d *dhcp) log() string {
	data, err := os.ReadFile(filepath.Join(d.dir, "client.log"))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// awaitLease waits until the client has got so many leases, and the host has the address.
func (g *guest) awaitLease(addr string, count int) {
	g.Helper()
	testwait.Nil(g, "the host to have "+addr+" by DHCP", func() error {
		out, err := g.node.Exec(g.Context(), "sh", "-c", "ip -4 -o addr show dev dh0; ip -4 route show default dev dh0")
		if log := g.dhcp.log(); err == nil && (!strings.Contains(out, addr+"/") || !strings.Contains(out, "metric 800") ||
			strings.Count(log, obtained) < count) {
			err = fmt.Errorf("it has %s\n%s", out, log)
		}
		return err
	})
}

// background starts one of busybox's programs, which ends with the test.
func (g *guest) background(in host.Host, log string, args ...string) host.Process {
	p, err := in.Start(host.Command{Path: "/bin/busybox", Args: args, Env: []string{"PATH=" + os.Getenv("PATH")}, Log: log})
	g.must(err)
	g.Cleanup(func() { _ = p.Kill() }) // it may have ended
	return p
}
