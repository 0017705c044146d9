//go:build e2e

// Package systemd boots what the Debian package ships: a machine with systemd, Docker and etcd, set up by the commands of
// the pages for its administrator.
package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
)

// pageBlocks returns the indented blocks of a page's section, in its order.
func pageBlocks(t *testing.T, page, section string) (blocks []string) {
	t.Helper()
	data, err := os.ReadFile("../../Documentation/" + page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if section != "" {
		_, text, _ = strings.Cut(text, "\n## "+section+"\n")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	inside := false
	for line := range strings.Lines(text) {
		code, ok := strings.CutPrefix(line, "    ")
		code = strings.TrimLeft(code, " ")
		switch {
		case ok && !inside:
			blocks = append(blocks, code)
		case ok:
			blocks[len(blocks)-1] += code
		}
		inside = ok
	}
	return blocks
}

// install makes the package, and installs it as the page says. etcd is the machine's own.
func (m *machine) install() {
	m.Helper()
	debs := m.TempDir()
	m.host("../../deploy/debian/build", debs, strings.TrimSpace(m.host("git", "describe", "--tags", "--always")))
	made, err := filepath.Glob(debs + "/*.deb")
	if err != nil || len(made) != 1 {
		m.Fatalf("made %q, %v", made, err)
	}
	m.host("install", "-D", "--mode=0644", made[0], filepath.Join(m.root, "root/bin/twill_test.deb"))
	m.write("/etc/apt/apt.conf.d/90yes", `APT::Get::Assume-Yes "true";`)
	m.run("cd /root && apt install ./bin/twill_*.deb")
}

// setUp follows docker.md until containers have addresses of the lease, and starts one, c1.
func (m *machine) setUp() {
	m.Helper()
	blocks := pageBlocks(m.T, "docker.md", "")
	if len(blocks) != 4 {
		m.Fatalf("docker.md has %d blocks: %q; change this test", len(blocks), blocks)
	}
	m.run("ETCDCTL_API=3; export ETCDCTL_API; " + blocks[0])
	m.install()
	m.write("/etc/default/twilld", strings.ReplaceAll(blocks[1], "192.0.2.1", "127.0.0.1"))
	m.run("systemctl enable --now twilld")
	m.run(blocks[2])
	if got := m.run("ip -o -4 addr show docker0"); !strings.Contains(got, "inet 10.5.") {
		m.Fatalf("docker0 has %s, want an address of the lease", got)
	}
	m.run("mkdir -p /tmp/image && cp /bin/busybox /tmp/image/ && tar -C /tmp/image -c . | docker import - tiny && " +
		"docker run -d --name c1 tiny /busybox sleep 1000000")
}

// life is what Twill may not end: Docker's process, and a container's.
func (m *machine) life() string {
	m.Helper()
	return "dockerd " + m.property("docker", "MainPID") + ", c1 " + m.run("docker inspect -f '{{.State.StartedAt}} {{.State.Running}}' c1")
}

// TestDockerHost follows docker.md on a machine, and then restarts, kills, upgrades and removes Twill: Docker and its
// containers stay as they are, and the machine is at the end as it was before.
func TestDockerHost(t *testing.T) {
	m := newMachine(t)
	m.boot()
	m.until("systemctl is-active docker && systemctl is-active etcd")
	before := m.picture()
	m.setUp()
	want := m.life()
	alive := func(after string) {
		t.Helper()
		m.until("systemctl is-active twilld")
		if got := m.life(); got != want {
			t.Fatalf("after %s: %s, want %s\n%s", after, got, want, m.journal())
		}
		t.Logf("after %s: %s", after, want)
	}
	m.run("systemctl restart twilld")
	alive("a restart")
	pid := m.property("twilld", "MainPID")
	m.run("kill -9 " + pid)
	testwait.Until(t, "systemd starts twilld again", func() bool { return !slices.Contains([]string{"0", pid}, m.property("twilld", "MainPID")) })
	alive("kill -9")
	m.run("systemctl stop etcd && rm -f /var/lib/twill/checkpoint.json && dpkg -i /root/bin/twill_test.deb")
	testwait.Until(t, "twilld waits for the store", func() bool { return m.property("twilld", "ActiveState") == "activating" })
	m.run("systemctl start etcd")
	alive("an upgrade without etcd")
	if text := m.property("twilld", "StatusText"); text == "" {
		t.Error("systemctl status shows no word of twilld's")
	}
	if out := m.run("twillctl doctor || true"); strings.Contains(out, "device-manager") {
		t.Errorf("the package does not configure what its doctor asks for:\n%s", out)
	}
	if mode := m.run("stat -c %a /etc/default/twilld"); mode != "600" {
		t.Errorf("/etc/default/twilld, which may have passwords, has the mode %s", mode)
	}

	leave := pageBlocks(t, "docker.md", "Leave")
	if len(leave) != 1 {
		t.Fatalf("docker.md's section Leave has %d blocks: change this test", len(leave))
	}
	lines := strings.SplitAfter(leave[0], "\n")
	last := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "restart docker") })
	m.run(strings.Join(lines[:last], ""))
	if got := m.life(); got != want {
		t.Fatalf("after the removal: %s, want %s", got, want)
	}
	m.run("docker rm -f c1 && docker rmi tiny && " + strings.Join(lines[last:], ""))
	m.until("systemctl is-active docker")
	m.compare(before, m.picture())
}

// picture is the machine's network and files, a line each.
func (m *machine) picture() []string {
	m.Helper()
	return strings.Split(m.run(`
		ip -o link | cut -d' ' -f2 | sed 's/^/link /'
		ip -o addr | sed 's/ *valid_lft.*//; s/^[0-9]*: /addr /'
		ip route show table all | sed 's/ linkdown//; s/^/route /'; ip -6 route show table all | sed 's/^/route /'; ip rule
		nft list ruleset 2>/dev/null | sed 's/counter packets.*bytes [0-9]*//'
		sysctl -a 2>/dev/null | grep -E 'forward|rp_filter|bridge|accept_r' | grep -vE 'docker0|nf_conntrack'
		find /etc /usr /opt /run /var -xdev '(' -path /var/lib/docker -o -path /var/lib/containerd -o -path /run/docker -o \
			-path /run/containerd -o -path /run/systemd -o -path /run/udev -o -path /var/lib/dpkg -o -path /var/cache -o -path /run/log -o \
			-path /var/lib/systemd -o -path /var/lib/apt -o -path /var/lib/etcd -o -path /var/log -o -path /etc/apt -o -path /run/netns ')' \
			-prune -o -print 2>/dev/null | sed 's/^/file /'`), "\n")
}

// remains is what a host keeps of Twill, for the reason that is given.
var remains = map[string]string{
	"+ net.ipv6.conf.all.forwarding = 1":          "the next network needs it, as uninstall.md says",
	"+ file /etc/systemd/system/docker.service.d": "the administrator's directory",
	"+ file /etc/docker/key.json":                 "Docker's own, of its second start",
	"+ file /run/agetty.reload":                   "systemd's, after a daemon-reload",
	"- file /opt":                                 "dpkg deletes an empty directory that a package had files in",
}

// compare fails the test for each line that has come or gone, but for what remains.
func (m *machine) compare(before, after []string) {
	m.Helper()
	var changes []string
	for _, line := range after {
		if !slices.Contains(before, line) {
			changes = append(changes, "+ "+strings.TrimSpace(line))
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			changes = append(changes, "- "+strings.TrimSpace(line))
		}
	}
	for _, c := range changes {
		if strings.Contains(c, "docker0") {
			continue // Docker's: it keeps its subnet in a file of its own, and takes it again
		}
		if why, ok := remains[c]; ok {
			m.Logf("%s: %s", c, why)
			continue
		}
		m.Errorf("the machine is not as it was: %s", c)
	}
}

// TestLateStore: after a power cut Docker starts with the checkpoint's lease. Without one it waits for an etcd that comes
// minutes later, and starts then.
func TestLateStore(t *testing.T) {
	m := newMachine(t)
	m.boot()
	m.until("systemctl is-active docker && systemctl is-active etcd")
	m.setUp()
	m.run("systemctl disable etcd; sync")
	m.powerOff()
	m.boot()
	m.until("systemctl is-active docker") // with the checkpoint's lease
	m.powerOff()
	m.host("rm", m.root+"/var/lib/twill/checkpoint.json")
	m.boot()
	testwait.Pause(t, 150*time.Second, "units must not give up")
	for _, unit := range []string{"twilld", "docker"} {
		if state := m.property(unit, "ActiveState"); state == "failed" || state == "active" {
			t.Errorf("without a lease %s is %s\n%s", unit, state, m.journal())
		}
	}
	t.Logf("twilld says: %s", m.property("twilld", "StatusText"))
	m.run("systemctl start etcd")
	m.until("systemctl is-active docker")
	if got := m.run("ip -o -4 addr show docker0"); !strings.Contains(got, "inet 10.5.") {
		t.Errorf("docker0 has %s", got)
	}
}

// TestBackends: the unit's sandbox lets every backend work that this kernel has, and the directory of CNI configs need not
// be there before.
func TestBackends(t *testing.T) {
	m := newMachine(t)
	m.boot()
	m.run("systemctl disable --now docker docker.socket containerd; rm -rf /etc/cni /opt/cni")
	m.until("systemctl is-active etcd")
	m.install()
	m.run("rm -rf /etc/cni")
	m.write("/etc/twill/conflist", `{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "twill"}]}`)
	m.write("/etc/default/twilld", "TWILLD_CNI_CONF_SOURCE=/etc/twill/conflist\nTWILLD_NETWORK_POLICY=true\nTWILLD_NETWORK_POLICY_FILE=/etc/twill/policies.yml\n")
	m.write("/etc/twill/policies.yml", "")
	for _, backend := range []struct{ name, device string }{{"vxlan", "flannel.1"}, {"host-gw", "cni0"}, {"udp", "flannel0"},
		{"wireguard", "flannel-wg"}, {"ipip", "flannel.ipip"}} {
		if !m.has(backend.name) {
			t.Logf("%s: this kernel does not have it", backend.name)
			continue
		}
		m.run(fmt.Sprintf(`ETCDCTL_API=3 etcdctl put /coreos.com/network/config '{"Network": "10.5.0.0/16", "Backend": {"Type": %q}}'`, backend.name))
		m.run("systemctl restart twilld")
		m.until("ip link show " + backend.device)
		if status := m.property("twilld", "StatusText"); status != "the node is ready" {
			testwait.Until(t, backend.name+" is ready", func() bool { return m.property("twilld", "StatusText") == "the node is ready" })
		}
	}
	m.until("test -s /etc/cni/net.d/10-flannel.conflist -o -s /etc/cni/net.d/10-twill.conflist")
	t.Log(m.run("systemd-analyze security --no-pager twilld twill-docker-opts | tail -3"))
	for _, unit := range []string{"twilld", "twill-docker-opts"} {
		m.run("systemd-analyze security --no-pager --threshold=40 " + unit)
	}
}

// has reports whether the kernel can make a backend's device.
func (m *machine) has(backend string) bool {
	kind := map[string]string{"wireguard": "wireguard", "ipip": "ipip"}[backend]
	return kind == "" || m.try("ip link add twill-try type "+kind+" && ip link del twill-try") == nil
}
