package choose_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/doctor/capture"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/choose"
	"github.com/twill-net/twill/lab/labtest"
	"github.com/twill-net/twill/netstate"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// TestCapture pings through a rule that drops large packets, and reads the file with tshark: the small ping is on each
// device of the way in order, and the large one ends with the kernel's reason.
func TestCapture(t *testing.T) {
	for _, backend := range []struct {
		name, device string
		link         string // the overlay device's
	}{{"vxlan", "flannel.1", "Ethernet"}, {"udp", "flannel0", "Raw IP"}} {
		t.Run(backend.name, func(t *testing.T) {
			l := labtest.Up(t, lab.Spec{Name: "capture" + backend.name, Backend: backend.name, Store: lab.File, Nodes: 2, Pods: 1})
			rule(t, l, "node2", "forward", "icmp type echo-request meta length > 1000 drop")
			src, dst := l.Pods()[0], l.Pods()[1]
			to := dst.Addr(netstate.IPv4)
			file := record(t, l, nil, nil, func() {
				ping(t, src.Host, host.Ping{To: to, Timeout: testwait.Limit}, true)
				ping(t, src.Host, host.Ping{To: to, Size: 1200, Timeout: 300 * time.Millisecond}, false)
			})
			port := map[string]string{"vxlan": "8472,vxlan", "udp": "8285,ip"}[backend.name]
			seen := fields(t, file, "icmp.type == 8 && ip.dst == "+to.String(), "-d", "udp.port=="+port,
				"-e", "frame.interface_name", "-e", "frame.packet_flags_direction", "-e", "frame.len", "-e", "frame.comment")
			small, large := split(seen)
			out, in := "0x00000002", "0x00000001"
			way := []string{"node1/pod1/eth0 " + out, "node1/veth " + in, "node1/cni0 " + in, "node1/" + backend.device + " " + out,
				"node1/eth1 " + out, "underlay/node1 " + in, "underlay/node2 " + out, "node2/eth1 " + in,
				"node2/" + backend.device + " " + in, "node2/cni0 " + out, "node2/veth " + out, "node2/pod1/eth0 " + in}
			if got := devices(small); !slices.Equal(got, way) {
				t.Errorf("the small ping is on\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(way, "\n"))
			}
			if got := devices(large); !slices.Equal(got, way[:9]) {
				t.Errorf("the large ping is on\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(way[:9], "\n"))
			}
			for i, row := range seen {
				last := i == len(seen)-1
				if comment := row[3]; strings.HasPrefix(comment, "dropped here: NETFILTER_DROP in n") != last || !last && comment != "" {
					t.Errorf("packet %d has the comment %q", i+1, comment)
				}
			}
			checkInfo(t, file, "node1/"+backend.device, backend.link)
		})
	}
}

// TestUnseen: a packet that is dropped before a device sees it is in the file too, as far as it is known.
func TestUnseen(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "captureunseen", Bare: true, Nodes: 2})
	rule(t, l, "node1", "output", "icmp type echo-request drop")
	a, b := l.Nodes()[0], l.Nodes()[1]
	file := record(t, l, []string{"node1", "node2/eth1"}, []string{"node1", "node2"}, func() {
		ping(t, a.Host, host.Ping{To: b.Underlay()[0], Size: 500, Timeout: 300 * time.Millisecond}, false)
		ping(t, b.Host, host.Ping{To: a.Underlay()[0], Timeout: testwait.Limit}, true)
	})
	seen := fields(t, file, "icmp", "-e", "frame.interface_name", "-e", "ip.dst", "-e", "ip.len", "-e", "frame.comment")
	if len(seen) == 0 || seen[0][0] != "node1/dropped" || seen[0][1] != b.Underlay()[0].String() || seen[0][2] != "500" ||
		!strings.HasPrefix(seen[0][3], "dropped here: NETFILTER_DROP") {
		t.Fatalf("got %v", seen)
	}
	var got []string
	for _, row := range seen[1:] {
		got = append(got, row[0]+row[3])
	}
	if want := []string{"node2/eth1", "node1/eth1", "node1/eth1", "node2/eth1"}; !slices.Equal(got, want) {
		t.Errorf("the other ping is on %v, want %v", got, want)
	}
	if arp := fields(t, file, "arp", "-e", "frame.interface_name"); len(arp) > 0 {
		t.Errorf("the filter lets through %v", arp)
	}
}

// TestCount: a capture ends by itself, and a device that is new is in it.
func TestCount(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "capturecount", Bare: true, Nodes: 1})
	o, err := choose.Capture(l, []string{"node1"}, []string{"192.0.2.9"})
	if err != nil {
		t.Fatal(err)
	}
	o.Count = 3
	var file bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	s, err := capture.New(o).Run(ctx, &file, func(capture.Summary) {
		run(t, l, "node1", "ip link add late type veth peer name late2; ip addr add 192.0.2.1/24 dev late; ip link set late up; ip link set late2 up; "+
			"until ip link show dev late | grep -q 'state UP'; do :; done; "+
			"ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev late; ping -c 2 -i 0.1 -W 0.1 192.0.2.9 || true")
	})
	if err != nil || s.Packets != 3 {
		t.Fatalf("%+v, %v: want three packets", s, err)
	}
	if seen := fields(t, save(t, file.Bytes()), "", "-e", "frame.interface_name"); !reflect.DeepEqual(seen, [][]string{{"node1/late"}, {"node1/late2"}, {"node1/late"}}) {
		t.Errorf("got %v", seen)
	}
}

// TestRefused: what the lab does not have is said, with what it has.
func TestRefused(t *testing.T) {
	l := labtest.Start(t, lab.Spec{Name: "capturerefused", Bare: true, Nodes: 1})
	for _, c := range []struct {
		devices, ends []string
		want          string
	}{
		{[]string{"node9"}, nil, `no host "node9": want one of node1, underlay, outside, or HOST/DEVICE`},
		{[]string{"node1/cni7"}, nil, `node1 has no device "cni7": want one of lo, eth1`},
		{[]string{"/"}, nil, `no host "/"`},
		{nil, []string{"pod1"}, `filter "pod1": want an address, a node or NODE/POD`},
		{nil, []string{"node1", "node1", "node1"}, "want one or two"},
	} {
		if _, err := choose.Capture(l, c.devices, c.ends); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c, err, c.want)
		}
	}
}

// record captures into a file while something is done.
func record(t *testing.T, l *lab.Lab, devices, ends []string, do func()) string {
	t.Helper()
	o, err := choose.Capture(l, devices, ends)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var file bytes.Buffer
	s, err := capture.New(o).Run(ctx, &file, func(s capture.Summary) {
		if s.NoReasons != "" {
			t.Error(s.NoReasons)
		}
		do()
		stop()
	})
	if err != nil || s.Lost > 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	return save(t, file.Bytes())
}

func save(t *testing.T, data []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.pcapng")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func run(t *testing.T, l *lab.Lab, node, command string) {
	t.Helper()
	h, err := l.Find(node)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Exec(t.Context(), "sh", "-ec", command); err != nil {
		t.Fatal(err)
	}
}

func rule(t *testing.T, l *lab.Lab, node, hook, text string) {
	t.Helper()
	run(t, l, node, "nft 'table inet capture { chain c { type filter hook "+hook+" priority 0; "+text+"; }; }'")
}

func ping(t *testing.T, h host.Host, p host.Ping, answered bool) {
	t.Helper()
	if _, err := h.Ping(t.Context(), p); (err == nil) != answered {
		t.Errorf("ping %s: %v, want an answer: %v", p.To, err, answered)
	}
}

// fields are what tshark reads of the packets that match, in the order of their times. That of the file is another where a
// reader was late.
func fields(t *testing.T, file, match string, args ...string) (rows [][]string) {
	t.Helper()
	args = append([]string{"-n", "-r", file, "-Y", match, "-T", "fields", "-e", "frame.time_epoch"}, args...)
	var said bytes.Buffer
	cmd := exec.Command("tshark", args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, &said)
	}
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimRight(line, "\n"), "\t"))
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	for i, row := range rows {
		rows[i] = row[1:]
	}
	return rows
}

// split tells the small ping's packets from the large one's.
func split(rows [][]string) (small, large [][]string) {
	for _, row := range rows {
		if len(row[2]) < 4 {
			small = append(small, row)
		} else {
			large = append(large, row)
		}
	}
	return small, large
}

// devices are those of packets with the direction. The bridge of the underlay does not see what it only switches, and
// names of pods' ports are made of their namespaces.
func devices(rows [][]string) (names []string) {
	for _, row := range rows {
		name := row[0]
		if at := strings.Index(name, "/veth"); at >= 0 {
			name = name[:at] + "/veth"
		}
		names = append(names, name+" "+row[1])
	}
	return names
}

// checkInfo looks at what capinfos says of the whole file, and of one interface.
func checkInfo(t *testing.T, file, device, link string) {
	t.Helper()
	out, err := exec.Command("capinfos", file).CombinedOutput()
	if err != nil {
		t.Fatalf("capinfos: %v: %s", err, out)
	}
	text := string(out)
	_, about, found := strings.Cut(text, "Name = "+device+"\n")
	for _, want := range []string{"Strict time order:   True", "Capture oper-sys:    Linux", "Capture application: twillctl",
		"Name = node2/pod1/eth0", "Name = underlay/br1", "Time precision = nanoseconds (9)"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if about, _, _ = strings.Cut(about, "Capture length"); !found || !strings.Contains(about, "Encapsulation = "+link) {
		t.Errorf("%s: want the link type %s in %q", device, link, about)
	}
}
