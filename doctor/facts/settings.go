// Package facts gathers what the doctor judges: on one machine, in the network namespace of the calling thread, reading
// only. It asks the kernel, the agent's files and process, the container runtime's config, and the firewall's tools.
package facts

import (
	"cmp"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/backend"
)

// Settings are the agent's flags as far as they decide what should be on the node, and where things are.
type Settings struct {
	Checkpoint, SubnetFile, Bridge string
	Choice                         agent.Choice
	Firewall                       backend.FirewallConfig
	Blackhole                      bool
	Health                         string // host:port, empty if it is not served
	CNIDir, CNIFile, BinDir        string // CNIDir empty: not looked at
	IPAMDir                        string // empty: as the conflist says
	Probe                          bool   // send packets to peers
	Kube                           Kube
	AskAPI                         bool // ask the cluster's API whether it answers the agent
	// LeaseFile and NetConf, if they are set, stand in for the checkpoint: a file of leases as twilld --lease-file has
	// it, and the network's config. Node is then this node's name.
	LeaseFile, NetConf, Node string
}

// Defaults are flannel's and Twill's.
func Defaults() Settings {
	return Settings{Checkpoint: "/var/lib/twill/checkpoint.json", SubnetFile: "/run/flannel/subnet.env", Bridge: "cni0",
		Choice:   agent.Choice{Settled: true},
		Firewall: backend.FirewallConfig{Random: true, Forward: backend.ForwardOn}, BinDir: "/opt/cni/bin", CNIFile: "10-twill.conflist"}
}

// FromFlags reads an agent's command line and environment; what is not a flag that matters here is passed over.
func FromFlags(args []string, environ map[string]string) Settings {
	s := Defaults()
	flags := parse(args)
	get := func(name string) (string, bool) {
		if v := flags[name]; len(v) > 0 {
			return v[len(v)-1], true
		}
		upper := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		for _, prefix := range []string{"TWILLD_", "FLANNELD_"} {
			if v := environ[prefix+upper]; v != "" {
				return v, true
			}
		}
		return "", false
	}
	for name, at := range map[string]*string{"checkpoint-file": &s.Checkpoint, "subnet-file": &s.SubnetFile, "bridge": &s.Bridge,
		"cni-bin-dir": &s.BinDir, "kubeconfig-file": &s.Kube.Kubeconfig, "kube-api-url": &s.Kube.URL, "kube-annotation-prefix": &s.Kube.AnnotationPrefix,
		"reservations-dir": &s.IPAMDir} {
		if v, ok := get(name); ok && v != "" {
			*at = v
		}
	}
	for name, at := range map[string]*bool{"ip-masq": &s.Firewall.Masq, "ip-blackhole-route": &s.Blackhole,
		"kube-subnet-mgr": &s.Kube.Use} {
		if v, ok := get(name); ok {
			*at = isTrue(v)
		}
	}
	if v, ok := get("ip-masq-fully-random-disable"); ok {
		s.Firewall.Random = !isTrue(v)
	}
	if v, ok := get("iptables-forward-rules"); ok {
		_ = s.Firewall.Forward.Set(cmp.Or(v, "true")) // the agent refuses what cannot be read
	}
	if v, ok := get("keep-node-source"); ok {
		s.Firewall.KeepLocal, _ = backend.ParseKeepLocal(v) // the agent refuses what cannot be read
	}
	if port, ok := get("healthz-port"); ok && port != "0" {
		s.Health = "127.0.0.1:" + port
	}
	if source, ok := get("cni-conf-source"); ok && source != "" {
		target, ok := get("cni-conf-file")
		if !ok {
			target = "/etc/cni/net.d/10-twill.conflist"
		}
		s.CNIDir, s.CNIFile = filepath.Split(target)
	}
	s.Choice = choice(flags, get)
	return s
}

func choice(flags map[string][]string, get func(string) (string, bool)) agent.Choice {
	list := func(name string) []string {
		values := flags[name]
		if v, ok := get(name); ok && len(values) == 0 {
			values = []string{v}
		}
		return values
	}
	c := agent.Choice{Names: list("iface"), Public: addrs(append(list("public-ip"), list("public-ipv6")...)), Settled: true}
	for _, expr := range list("iface-regex") {
		if re, err := regexp.Compile(expr); err == nil {
			c.Patterns = append(c.Patterns, re)
		}
	}
	for _, a := range addrs(list("iface-can-reach")) {
		c.Reach = a // the last one counts
	}
	return c
}

func addrs(texts []string) []netip.Addr {
	var list []netip.Addr
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil {
			list = append(list, a)
		}
	}
	return list
}

func isTrue(v string) bool {
	return v == "" || v == "1" || strings.EqualFold(v, "true") || v == "t" || v == "T"
}

// parse reads --name=value, --name value and --name, with one dash or two. A word after a flag without = is taken for
// its value; the flags here that are booleans need none, and what follows a flag is a flag again.
func parse(args []string) map[string][]string {
	flags := map[string][]string{}
	for i, a := range args {
		if !strings.HasPrefix(a, "-") {
			continue
		}
		name, value, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !joined && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			value = args[i+1]
		}
		flags[name] = append(flags[name], value)
	}
	return flags
}
