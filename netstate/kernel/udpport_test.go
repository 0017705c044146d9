package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/twill-net/twill/netstate"
)

// TestPortHolder: a VXLAN device that cannot have its port says what has it, and the doctor's look finds the same. Devices
// that share the port are innocent.
func TestPortHolder(t *testing.T) {
	h := fresh(t)
	k := h.Kernel.(*Kernel)
	run := func(lines ...string) {
		for _, line := range lines {
			if err := command(line); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	run("ip link add eth0 type veth peer name peer0", "ip link set eth0 up", "ip link set peer0 up", "ip addr add 192.0.2.1/24 dev eth0")
	want := netstate.VXLAN{Name: "vx1", VNI: 1, Port: 8472, Dev: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1450,
		MAC: netstate.MAC{2, 0, 0, 0, 0, 1}, Up: true, Marked: true}
	plan := netstate.Plan{{Want: want}}
	var conn net.PacketConn
	for _, test := range []struct {
		name, device, says string
		do, undo           func()
	}{
		{name: "a process", says: fmt.Sprintf(" (process %d): stop it", os.Getpid()),
			do: func() {
				var err error
				if conn, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "0.0.0.0:8472"); err != nil {
					t.Fatal(err)
				}
			}, undo: func() { conn.Close() }},
		{name: "a device that takes all VNIs", device: "vxall", says: "UDP port 8472 is held by the VXLAN device vxall: delete it",
			do: func() { run("ip link add vxall type vxlan external dstport 8472", "ip link set vxall up") }, undo: func() { run("ip link del vxall") }},
		{name: "a device with the VNI", device: "vxold", says: "another VXLAN device on this host has VNI 1 and UDP port 8472",
			do: func() {
				run("ip link add vxold type vxlan id 1 dev eth0 local 192.0.2.1 dstport 8472", "ip link set vxold up")
			}, undo: func() { run("ip link del vxold") }},
	} {
		test.do()
		err := k.Apply(t.Context(), plan)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want %q in it", test.name, err, test.says)
		}
		if got := k.PortHolder(want); got.Device != test.device || got.Text == "" {
			t.Errorf("%s: got %+v, want device %q", test.name, got, test.device)
		}
		test.undo()
		_ = command("ip link del vx1") // the kernel leaves one that is down
	}
	run("ip link add vxtwo type vxlan id 2 dev eth0 local 192.0.2.1 dstport 8472", "ip link set vxtwo up")
	if got := k.PortHolder(want); got != (Holder{}) {
		t.Errorf("a device that shares the port: got %+v", got)
	}
	if err := k.Apply(t.Context(), plan); err != nil {
		t.Errorf("a device that shares the port: %v", err)
	}
}
