package kernel

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/rtnl"
)

// TestMovesIPv6Route: from a gateway on the segment to one behind an overlay and back, there is a route at every moment. Where
// somebody else has a route to the gateway, that and the old route stay.
func TestMovesIPv6Route(t *testing.T) {
	h := fresh(t)
	run(t, h, "ip link add u0 type veth peer name u1", "ip link set u0 up", "ip link set u1 up", "ip -6 addr add fd00:1::1/64 dev u0 nodad",
		"ip link add br9 type bridge", "ip link set br9 up")
	dst := netip.MustParsePrefix("fd00:9::/64")
	direct := netstate.Route{Dst: dst, Via: netip.MustParseAddr("fd00:1::2"), Dev: "u0", Metric: 1024, Protocol: netstate.Protocol}
	overlay := netstate.Route{Dst: dst, Via: dst.Addr(), Dev: "br9", Onlink: true, Metric: 1024, Protocol: netstate.Protocol}
	k := h.Kernel.(*Kernel)
	apply := func(was, want netstate.Object) {
		t.Helper()
		if _, err := k.Observe(t.Context(), netstate.NewState(want)); err != nil {
			t.Fatal(err)
		}
		if err := k.Apply(t.Context(), netstate.Plan{{Was: was, Want: want}}); err != nil {
			t.Fatal(err)
		}
	}
	apply(nil, direct)
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err == nil {
		defer conn.Close()
		err = conn.JoinGroup(unix.RTNLGRP_IPV6_ROUTE)
	}
	if err != nil {
		t.Fatal(err)
	}
	apply(direct, overlay)
	apply(overlay, direct)
	for _, line := range deleted(t, conn) {
		if line == dst {
			t.Error("the route was away for a moment")
		}
	}
	run(t, h, "ip -6 route add fd00:9::/128 dev u0 metric 1024") // somebody's, where the gateway is
	if err := k.Apply(t.Context(), netstate.Plan{{Was: direct, Want: overlay}}); err == nil {
		t.Error("a gateway that is behind another device is taken")
	}
	for _, p := range deleted(t, conn) {
		if p == netip.PrefixFrom(dst.Addr(), 128) {
			t.Error("somebody's route is deleted")
		}
	}
	have, err := k.Observe(t.Context(), netstate.NewState(direct))
	if left := netstate.Diff(netstate.NewState(direct), have); err != nil || len(left) > 0 {
		t.Errorf("in the end it lacks %v, %v", left, err)
	}
}

// deleted returns the destinations of the routes of which a socket was told that they are deleted.
func deleted(t *testing.T, conn *netlink.Conn) (all []netip.Prefix) {
	t.Helper()
	for {
		err := conn.SetReadDeadline(time.Now().Add(5 * gather))
		if err != nil {
			t.Fatal(err)
		}
		messages, err := conn.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if addr, ok := netip.AddrFromSlice(rtnl.Attribute(m.Data, unix.SizeofRtMsg, unix.RTA_DST)); ok && m.Header.Type == unix.RTM_DELROUTE {
				all = append(all, netip.PrefixFrom(addr, int(m.Data[1])))
			}
		}
	}
}
