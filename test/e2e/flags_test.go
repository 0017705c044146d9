//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
)

// flagCases are command lines as installers and guides render them, and what flannel does with them in the
// namespace of newSite.
var flagCases = []struct {
	name, args, env string
	dual            bool
}{
	{name: "kube-flannel.yml", args: "--ip-masq"},
	{name: "Vagrant", args: "--ip-masq --iface=eth1"},
	{name: "Vagrant with either box", args: `--iface=enp0s8 --iface=eth1 --iface-regex=10\.64\.`},
	{name: "Vagrant with neither", args: `--iface=enp0s8 --iface=enp0s9 --iface-regex=10\.64\.`},
	{name: "kubespray regexp", args: `--ip-masq --iface-regex=10\.0\.[0-2]\.\d{1,3}`},
	{name: "kubespray regexp, one octet", args: `--iface-regex=192\.168\.33\.\d{3,3}`},
	{name: "kubespray interface and regexp", args: `--iface=bond0 --iface-regex=192\.168\.33\.\d{1,3}`},
	{name: "kubespray can-reach", args: "--iface-can-reach=192.168.33.1"},
	{name: "can-reach by a route with a source", args: "--iface-can-reach=203.0.113.9"},
	{name: "can-reach by the default route", args: "--iface=bond0 --iface-regex=^wlan --iface-can-reach=8.8.8.8"},
	{name: "the last can-reach", args: "--iface-can-reach=8.8.8.8 --iface-can-reach=192.168.33.1"},
	{name: "k3s with an external address", args: "--iface=eth1 --public-ip=203.0.113.7"},
	{name: "RKE", args: "--ip-masq --iface=eth2"},
	{name: "RKE without an interface", args: "--ip-masq --iface="},
	{name: "public address alone", args: "--public-ip=192.168.33.201"},
	{name: "iface is an address", args: "--iface=192.168.33.201"},
	{name: "lo", args: "--iface=lo"},
	{name: "regex of a name", args: "--iface-regex=^eth1$"},
	{name: "regex of a name and an address", args: `--iface-regex=eth1|^10\.64\.`},
	{name: "regex of a name without an address", args: `--iface-regex=^bare$ --iface-regex=^eth2$`},
	{name: "regexes in order", args: `--iface-regex=^172\. --iface-regex=^192\.`},
	{name: "a comma does not separate", args: "--iface=eth1,eth2"},
	{name: "nothing matches", args: "--iface=wlan0"},
	{name: "environment", env: "FLANNELD_IFACE=eth1"},
	{name: "environment with a regex", env: `FLANNELD_IFACE_REGEX=192\.168\.\d{1,3}\.201`},
	{name: "empty environment", env: "FLANNELD_IFACE="},
	{name: "a flag before the environment", args: "--iface=eth2", env: "FLANNELD_IFACE=eth1"},
	{name: "dual", args: "--ip-masq", dual: true},
	{name: "dual, by name", args: "--iface=eth1", dual: true},
	{name: "dual, first without IPv6", args: "--iface=eth2 --iface=eth1", dual: true},
	{name: "dual, by address", args: "--iface=192.168.33.201", dual: true},
	{name: "dual, by address with the other", args: "--iface=192.168.33.201 --public-ipv6=fd33::201", dual: true},
	{name: "dual, regex of both", args: `--iface-regex=192\.168\.33|fd33:`, dual: true},
	{name: "dual, can-reach", args: "--iface-can-reach=192.168.33.1", dual: true},
	{name: "dual, public addresses", args: "--iface=eth1 --public-ip=203.0.113.7 --public-ipv6=2001:db8::7", dual: true},
}

// TestFlannelFlags gives the genuine flanneld and twilld the same arguments in the same namespace: they choose the same
// interface, lease the same and write the same subnet.env, or both refuse. Two differences are meant: Twill
// sends from an address of the interface where flannel sends from the public one, and pods of two families
// have room for the longer header.
func TestFlannelFlags(t *testing.T) {
	flanneld, err := filepath.Abs("../../bin/flannel/flanneld")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(flanneld); err != nil {
		t.Fatalf("%v: run tools/flannel/build", err)
	}
	for k, c := range flagCases {
		t.Run(c.name, func(t *testing.T) {
			var results []string
			for _, agent := range []string{flanneld, small("").Programs.Agent} {
				s := newSite(t, fmt.Sprintf("e2eflags%d", k), c.dual)
				result := s.run(agent, c.args, c.env)
				if strings.Contains(c.args, "--public-ip") {
					result = regexp.MustCompile(`local \S+ `).ReplaceAllString(result, "")
				}
				if c.dual {
					result = regexp.MustCompile(`FLANNEL_MTU=\d+`).ReplaceAllString(result, "")
				}
				results = append(results, result)
				s.close()
			}
			t.Log(results[0])
			if results[0] != results[1] {
				t.Errorf("flanneld:\n%s\ntwilld:\n%s", results[0], results[1])
			}
		})
	}
}

// site is a namespace with an etcd and the interfaces of a machine.
type site struct {
	*testing.T
	host.Host
	dir   string
	dual  bool
	procs []host.Process
}

const siteEtcd = "127.0.0.1:2379"

const siteLinks = `ip link set lo up
ip link add eth0 type veth peer name peer0
ip link add eth2 type veth peer name peer2
ip link add eth1 type veth peer name peer1
ip link add bare type veth peer name peer3
ip link set peer0 up
ip link set peer1 up
ip link set peer2 up
ip link set eth0 up
ip link set eth1 up
ip link set eth2 addrgenmode none
ip link set eth2 up
ip link set bare up
ip addr add 192.0.2.1/32 dev lo
ip addr add 10.0.2.15/24 dev eth0
ip addr add fd02::15/64 dev eth0 nodad
ip addr add 192.168.33.101/24 dev eth1
ip addr add 192.168.33.201/24 dev eth1
ip addr add fd33::101/64 dev eth1 nodad
ip addr add fd33::201/64 dev eth1 nodad
ip addr add 10.64.0.5/24 dev eth2
ip route add default via 10.0.2.2
ip route add default via fd02::2
ip route add 203.0.113.0/24 via 192.168.33.1 src 192.168.33.201`

func newSite(t *testing.T, name string, dual bool) *site {
	t.Helper()
	s := &site{T: t, Host: host.Host{Name: name}, dir: t.TempDir(), dual: dual}
	_ = s.Delete() // of a run that crashed
	s.must(s.Create())
	t.Cleanup(s.close)
	for _, line := range strings.Split(siteLinks, "\n") {
		s.exec(strings.Fields(line)...)
	}
	etcd, err := controlplane.EtcdCommand(filepath.Join(s.dir, "etcd"), "http://"+siteEtcd)
	s.must(err)
	s.start(etcd[0], etcd[1:], nil)
	config := map[string]any{"Network": "10.244.0.0/16", "SubnetMin": "10.244.7.0", "SubnetMax": "10.244.7.0", "EnableNFTables": true,
		"Backend": map[string]string{"Type": "vxlan"}}
	if dual {
		config["EnableIPv6"], config["IPv6Network"] = true, "fd44::/48"
		config["IPv6SubnetMin"], config["IPv6SubnetMax"] = "fd44:0:0:7::", "fd44:0:0:7::"
	}
	text, err := json.Marshal(config)
	s.must(err)
	s.etcd(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Put(ctx, "/coreos.com/network/config", string(text))
		return err
	})
	return s
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *site) exec(args ...string) string {
	s.Helper()
	out, err := s.Exec(s.Context(), args...)
	s.must(err)
	return out
}

func (s *site) start(path string, args, env []string) host.Process {
	s.Helper()
	p, err := s.Start(host.Command{Path: path, Args: args, Env: append(os.Environ(), env...), Log: filepath.Join(s.dir, filepath.Base(path)+".log")})
	s.must(err)
	s.procs = append(s.procs, p)
	return p
}

func (s *site) close() {
	for _, p := range s.procs {
		_ = p.Kill() // it may have ended
	}
	s.procs = nil
	if s.Exists() {
		s.must(s.Delete())
	}
}

// etcd calls f with a client inside the namespace, and waits for the server.
func (s *site) etcd(f func(context.Context, *clientv3.Client) error) {
	s.Helper()
	dial := func(ctx context.Context, _ string) (conn net.Conn, err error) {
		err = s.Do(func() error { conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", siteEtcd); return err })
		return conn, err
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + siteEtcd}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)}})
	s.must(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(s.Context(), testwait.Limit)
	defer cancel()
	s.must(f(ctx, c))
}

// run starts an agent and tells what came of it when it has written its subnet.env, or what it refused.
func (s *site) run(agent, args, env string) string {
	s.Helper()
	file := filepath.Join(s.dir, "subnet.env")
	all := append([]string{"--etcd-endpoints=http://" + siteEtcd, "--subnet-file=" + file}, strings.Fields(args)...)
	vars := strings.Fields(env)
	if filepath.Base(agent) == "twilld" {
		vars = append(vars, "TWILLD_CHECKPOINT_FILE="+filepath.Join(s.dir, "checkpoint.json"))
	}
	p := s.start(agent, all, vars)
	result := ""
	testwait.Nil(s.T, "a lease or a refusal", func() error {
		log, err := os.ReadFile(p.Log)
		s.must(err)
		text, err := os.ReadFile(file)
		switch {
		case err == nil:
			result = s.link(4) + s.link(6) + s.lease() + ours(string(text))
			return nil
		case !p.Running(), strings.Contains(string(log), "choose the underlay"):
			result = "refused"
			return nil
		}
		return fmt.Errorf("no %s: %s", file, log)
	})
	return result
}

var lower = regexp.MustCompile(`vxlan id \d+ local \S+ dev \S+`)

// link is where the VXLAN device of a family stands.
func (s *site) link(family int) string {
	s.Helper()
	name := map[int]string{4: "flannel.1", 6: "flannel-v6.1"}[family]
	if family == 6 && !s.dual {
		return ""
	}
	return name + ": " + lower.FindString(s.exec("ip", "-d", "link", "show", name)) + "\n"
}

// lease is what peers read, without what is random.
func (s *site) lease() (text string) {
	s.Helper()
	s.etcd(func(ctx context.Context, c *clientv3.Client) error {
		got, err := c.Get(ctx, "/coreos.com/network/subnets/", clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range got.Kvs {
			var lease struct{ PublicIP, PublicIPv6, BackendType string }
			if err := json.Unmarshal(kv.Value, &lease); err != nil {
				return err
			}
			text += fmt.Sprintf("%s: %+v\n", kv.Key, lease)
		}
		return nil
	})
	return text
}

// ours are the lines of subnet.env that flannel has too.
func ours(env string) string {
	lines := strings.Split(strings.TrimSpace(env), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "FLANNEL_") })
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
