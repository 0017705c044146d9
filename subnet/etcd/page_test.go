package etcd

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// page is Documentation/etcd.md: its shell blocks, each with the text that is to be printed.
type page struct {
	*server
	t     *testing.T
	tools string // the directory of etcdctl
	own   string // the subnet that the first node got, in place of 10.5.52.0
}

type block struct{ script, want string }

func blocks(t *testing.T) []block {
	t.Helper()
	data, err := os.ReadFile("../../Documentation/etcd.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []block
	for i, part := range strings.Split(string(data), "\n```") {
		script, isScript := strings.CutPrefix(part, "sh\n")
		switch {
		case i%2 == 0:
		case isScript:
			all = append(all, block{script: script})
		default:
			all[len(all)-1].want = strings.TrimPrefix(part, "text\n")
		}
	}
	if len(all) != 7 {
		t.Fatalf("the page has %d shell blocks: this test knows 7", len(all))
	}
	return all
}

// run runs a block, and compares what it prints except for the names and the age of etcd's leases.
func (p *page) run(b block) {
	p.t.Helper()
	local := func(s string) string { return strings.ReplaceAll(s, "10.5.52.0", p.own) }
	c := exec.Command("bash", "-euo", "pipefail", "-c", local(b.script))
	c.Env = append(os.Environ(), "ETCDCTL_ENDPOINTS="+p.url, "PATH="+p.tools+":"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", b.script, err, out)
	}
	if got, want := plain(string(out)), plain(local(b.want)); b.want != "" && got != want {
		p.t.Errorf("%s prints\n%swant\n%s", b.script, got, want)
	}
}

var (
	leaseIDs  = regexp.MustCompile(`\b[0-9a-f]{15,16}\b`)
	remaining = regexp.MustCompile(`remaining\(\d+s\)`)
)

func plain(s string) string {
	return strings.TrimSpace(remaining.ReplaceAllString(leaseIDs.ReplaceAllString(s, "ID"), "remaining")) + "\n"
}

// node is twilld as far as etcd sees it: it acquires a lease, and keeps it.
func (p *page) node(name, ip string) subnet.Lease {
	p.t.Helper()
	store := p.open(p.t, Options{})
	l, err := store.Acquire(p.t.Context(), subnet.Lease{Node: name, Backend: "vxlan", Stacks: []subnet.Stack{{
		Underlay: netip.MustParseAddr(ip), Data: json.RawMessage(`{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`)}}})
	if err != nil {
		p.t.Fatal(err)
	}
	go func() { _ = store.Watch(p.t.Context(), func(subnet.Snapshot) {}) }() // until the test ends
	return l
}

// stays fails unless the first node's key is a reservation, or is none, now and a while later.
func (p *page) stays(reserved bool) {
	p.t.Helper()
	key := "/coreos.com/network/subnets/" + p.own + "-24"
	for range 10 {
		if value, lease := p.get(p.t, key); (lease == 0) != reserved || !strings.Contains(value, `"node1"`) {
			p.t.Fatalf("the key has the lease %x and the value %s, want a reservation: %v", lease, value, reserved)
		}
		testwait.Pause(p.t, 50*time.Millisecond, "an agent that is wrong would write the key")
	}
}

// TestPage runs the commands of the page about etcd.
func TestPage(t *testing.T) {
	tools, err := filepath.Abs("../../bin/kube")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(tools, "etcdctl")); err != nil {
		t.Fatalf("%v: run tools/etcd/build etcdctl first", err)
	}
	p := page{server: startServer(t), t: t, tools: tools, own: "10.5.52.0"}
	b := blocks(t)
	p.run(b[0]) // the config
	p.own = p.node("node1", "192.0.2.1").Stacks[0].Subnet.Addr().String()
	for _, b := range b[2:4] { // the keys, the TTL
		p.run(b)
	}
	p.stays(false)
	p.run(b[4]) // a reservation
	p.stays(true)
	p.run(b[5]) // one in advance
	if l := p.node("node7", "192.0.2.7"); l.Stacks[0].Subnet.String() != "10.5.107.0/24" {
		t.Errorf("the node with a reservation got %v", l.Stacks[0].Subnet)
	}
	if value, lease := p.get(t, "/coreos.com/network/subnets/10.5.107.0-24"); lease != 0 || !strings.Contains(value, "VtepMAC") {
		t.Errorf("its key has the lease %x and the value %s", lease, value)
	}
	p.run(b[6]) // the end of a reservation
	p.stays(false)
}
