package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate/rtnl"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

// TestCheck alters each thing that ADD made, one at a time: CHECK must name it, and must find nothing before.
func TestCheck(t *testing.T) {
	host := wire.HostEnd(ipam.Owner{Container: "a", Dev: "eth0"})
	defaultRoute := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
		Table: unix.RT_TABLE_MAIN}
	type world struct {
		*testing.T
		n         *node
		pod, host *netlink.Handle
		eth0, end netlink.Link
	}
	for _, tt := range []struct {
		name, want string
		alter      func(w world) error
	}{
		{"address deleted", "+ addr 10.244.1.2/24 dev eth0", func(w world) error {
			return w.pod.AddrDel(w.eth0, &netlink.Addr{IPNet: rtnl.IPNet(prefix("10.244.1.2/24"))})
		}},
		{"IPv6 address deleted", "+ addr fd00:10:244:1::2/64 dev eth0", func(w world) error {
			return w.pod.AddrDel(w.eth0, &netlink.Addr{IPNet: rtnl.IPNet(prefix("fd00:10:244:1::2/64"))})
		}},
		{"default route deleted", "+ route 0.0.0.0/0 via 10.244.1.1 dev eth0", func(w world) error {
			return w.pod.RouteDel(defaultRoute)
		}},
		{"IPv6 cluster route deleted", "+ route fd00:10:244::/48 via fd00:10:244:1::1 dev eth0", func(w world) error {
			return w.pod.RouteDel(&netlink.Route{Dst: rtnl.IPNet(prefix("fd00:10:244::/48"))})
		}},
		{"default route altered",
			"~ route 0.0.0.0/0 via 10.244.1.1 dev eth0 (was route 0.0.0.0/0 via 10.244.1.99 dev eth0)", func(w world) error {
				r := *defaultRoute
				r.LinkIndex, r.Gw = w.eth0.Attrs().Index, net.IPv4(10, 244, 1, 99)
				return w.pod.RouteReplace(&r)
			}},
		{"host's mtu", "master cni0 mtu 1430 hairpin on up (was link " + host + " master cni0 mtu 1400",
			func(w world) error {
				return w.host.LinkSetMTU(w.end, 1400)
			}},
		{"pod's hardware address", "was link eth0 address 02:00:00:00:00:01", func(w world) error {
			return w.pod.LinkSetHardwareAddr(w.eth0, net.HardwareAddr{2, 0, 0, 0, 0, 1})
		}},
		{"pod's end down", "was link eth0 address 0a:58:0a:f4:01:02 down",
			func(w world) error { return w.pod.LinkSetDown(w.eth0) }},
		{"host's end down", "hairpin on down", func(w world) error { return w.host.LinkSetDown(w.end) }},
		{"master", "was link " + host + " master none", func(w world) error { return w.host.LinkSetNoMaster(w.end) }},
		{"hairpin", "was link " + host + " master cni0 mtu 1430 hairpin off", func(w world) error {
			return w.host.LinkSetHairpin(w.end, false)
		}},
		{"interface deleted", "+ link eth0", func(w world) error { return w.pod.LinkDel(w.eth0) }},
		{"reservation deleted", "10.244.1.2 of a", func(w world) error {
			remove(w.T, filepath.Join(w.n.storeDir(), "10.244.1.2"))
			return nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, pod := newNode(t, envDual), newNamespace(t)
			conf := n.withPrev(n.must("ADD", "a", pod, n.config(nil)))
			w := world{T: t, n: n, pod: netlinkIn(t, pod), host: netlinkIn(t, n.ns)}
			var err, err2 error
			w.eth0, err = w.pod.LinkByName("eth0")
			w.end, err2 = w.host.LinkByName(host)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			n.must("CHECK", "a", pod, conf)
			if err := tt.alter(w); err != nil {
				t.Fatal(err)
			}
			n.mustFail(999, tt.want, "CHECK", "a", pod, conf)
		})
	}
}

// TestCheckLock holds that CHECK sees a port that takes frames from any hardware address though macspoofchk
// is on.
func TestCheckLock(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	conf := map[string]any{"macspoofchk": true}
	conf["prevResult"] = rawJSON(n.must("ADD", "a", pod, n.config(conf)))
	n.must("CHECK", "a", pod, n.config(conf))
	host := wire.HostEnd(ipam.Owner{Container: "a", Dev: "eth0"})
	inside(t, n.ns, func() error { return exec.Command("bridge", "link", "set", "dev", host, "locked", "off").Run() })
	n.mustFail(999, "hairpin on locked on up (was link "+host+" master cni0 mtu 1450 hairpin on up)", "CHECK", "a",
		pod, n.config(conf))
	conf["macspoofchk"] = false
	n.must("CHECK", "a", pod, n.config(conf))
}

// TestCheckTolerates holds that what later plugins add or change, and say so in the result, is no finding.
func TestCheckTolerates(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	result := n.must("ADD", "a", pod, n.config(nil))
	h := netlinkIn(t, pod)
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.AddrAdd(eth0, &netlink.Addr{IPNet: rtnl.IPNet(prefix("192.0.2.1/24"))}); err != nil {
		t.Fatal(err)
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: rtnl.IPNet(prefix("198.51.100.0/24")),
		Gw: net.ParseIP("192.0.2.2")}); err != nil {
		t.Fatal(err)
	}
	n.must("CHECK", "a", pod, n.withPrev(result))
	remove(t, filepath.Join(n.dir, "subnet.env"))
	n.must("CHECK", "a", pod, n.withPrev(result))
}

// TestCheckAfterOthers holds that CHECK demands nothing that upstream's plugins behind this one alter without a word in
// the result: sbr moves the routes, tuning sets the MTU.
func TestCheckAfterOthers(t *testing.T) {
	buildUpstream(t, "meta/sbr")
	buildUpstream(t, "meta/tuning")
	for kind, more := range map[string]map[string]any{"sbr": nil, "tuning": {"mtu": 1300, "mac": "0a:58:0a:f4:09:09"}} {
		for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
			t.Run(kind+" "+version, func(t *testing.T) {
				n, pod := newNode(t, envV4), newNamespace(t)
				conf := map[string]any{"cniVersion": version, "prevResult": rawJSON(n.must("ADD", "a", pod,
					n.config(map[string]any{"cniVersion": version})))}
				later := map[string]any{"type": kind}
				maps.Copy(later, conf)
				maps.Copy(later, more)
				c := n.command("ADD", "a", pod, n.config(later))
				c.Path = filepath.Join(binaries, kind)
				var stdout bytes.Buffer
				c.Stdout, c.Stderr = &stdout, os.Stderr
				inside(t, n.ns, c.Run)
				conf["prevResult"] = rawJSON(stdout.Bytes())
				n.must("CHECK", "a", pod, n.config(conf))
			})
		}
	}
}

// TestCheckOfALesserResult holds that CHECK asks for nothing that the result does not say: older versions
// have no MTUs, other plugins no hardware addresses and no gateways in routes.
func TestCheckOfALesserResult(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	var result map[string]any
	if err := json.Unmarshal(n.must("ADD", "a", pod, n.config(nil)), &result); err != nil {
		t.Fatal(err)
	}
	for _, i := range result["interfaces"].([]any) {
		delete(i.(map[string]any), "mac")
		delete(i.(map[string]any), "mtu")
	}
	for _, r := range result["routes"].([]any) {
		delete(r.(map[string]any), "gw")
	}
	conf := map[string]any{"prevResult": result}
	n.must("CHECK", "a", pod, n.config(conf))
	conf["mtu"] = 1300
	n.must("CHECK", "a", pod, n.config(conf))
	delete(conf, "mtu")
	n.lease(strings.Replace(envDual, "MTU=1430", "MTU=1400", 1))
	n.must("CHECK", "a", pod, n.config(conf))
	remove(t, filepath.Join(n.dir, "subnet.env"))
	n.must("CHECK", "a", pod, n.config(conf))
}

// TestCheckOfAnothersReservation holds that CHECK sees that another has the pod's address.
func TestCheckOfAnothersReservation(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	conf := n.withPrev(n.must("ADD", "a", pod, n.config(nil)))
	file := filepath.Join(n.storeDir(), "10.244.1.2")
	remove(t, file)
	if err := os.WriteFile(file, []byte("b\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.mustFail(999, "+ reservation 10.244.1.2 of a in "+n.storeDir(), "CHECK", "a", pod, conf)
}

// TestCheckOfOthersAddresses holds that an address of the result that says no interface, or another one, is
// not looked for.
func TestCheckOfOthersAddresses(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	var result map[string]any
	if err := json.Unmarshal(n.must("ADD", "a", pod, n.config(nil)), &result); err != nil {
		t.Fatal(err)
	}
	ips := result["ips"].([]any)
	result["ips"] = append(ips, map[string]any{"address": "192.0.2.1/24"},
		map[string]any{"address": "192.0.2.2/24", "interface": 0})
	n.must("CHECK", "a", pod, n.config(map[string]any{"prevResult": result}))
}

// TestCheckStranger holds that a directory in the place of the reservation is none.
func TestCheckStranger(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	conf := n.withPrev(n.must("ADD", "a", pod, n.config(nil)))
	reservation := filepath.Join(n.storeDir(), "10.244.1.2")
	remove(t, reservation)
	if err := os.Mkdir(reservation, 0o700); err != nil {
		t.Fatal(err)
	}
	n.mustFail(999, "+ reservation 10.244.1.2 of a in "+n.storeDir(), "CHECK", "a", pod, conf)
}

func TestCheckNeeds(t *testing.T) {
	n, pod := newNode(t, envDual), newNamespace(t)
	result := n.must("ADD", "a", pod, n.config(nil))
	n.mustFail(7, "prevResult is missing", "CHECK", "a", pod, n.config(nil))
	n.mustFail(7, "no interface eth0", "CHECK", "a", pod, n.withPrev([]byte(`{"cniVersion":"1.0.0"}`)))
	n.mustFail(3, "is not there or not a network namespace", "CHECK", "a", pod+"-gone", n.withPrev(result))
	n.mustFail(1, "", "CHECK", "a", pod, n.config(map[string]any{"cniVersion": "0.3.1"}))
	n.mustFail(1, "", "ADD", "a", pod, n.config(map[string]any{"cniVersion": "9.9.9"}))
	if err := fmt.Sprint(n.reserved()); len(n.reserved()) != 2 {
		t.Errorf("reservations %s, want two as before", err)
	}
}
