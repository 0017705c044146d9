package plugin

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/delegate"
	"github.com/twill-net/twill/plugin/internal/cnierr"
)

// portMapping is one host port, in the form of the CNI conventions.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// bandwidth is a pod's limits: rates in bits per second, bursts in bits; 0 is no limit.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// readRuntimeConfig reads what the runtime says of this one pod (CONVENTIONS.md of containernetworking/cni).
// Runtimes write the keys in lower or in upper camel case; keys for other plugins are ignored.
func (c *config) readRuntimeConfig(f *fields) {
	c.readIdentity(f)
	if raw := f.Raw("ipRanges"); raw != nil {
		c.readRanges(f, "ipRanges", raw)
	}
	var dns struct{ Servers, Searches, Options []string }
	f.get("dns", &dns, `{"servers": […], "searches": […]}`)
	if len(dns.Servers)+len(dns.Searches)+len(dns.Options) > 0 {
		c.dns = types.DNS{Nameservers: dns.Servers, Search: dns.Searches, Options: dns.Options}
	}
	var ports []portMapping
	const wantPorts = `a list of {"hostPort", "containerPort", "protocol"}, ports being from 1 to 65535`
	good := f.get("portMappings", &ports, wantPorts, func() bool {
		ports = slices.DeleteFunc(ports, func(p portMapping) bool { return p.HostPort == 0 }) // a port that nobody maps
		for i := range ports {
			p := &ports[i]
			if p.Protocol = strings.ToLower(p.Protocol); p.Protocol == "" {
				p.Protocol = "tcp"
			}
			if p.HostPort < 0 || p.HostPort > 65535 || p.ContainerPort < 1 || p.ContainerPort > 65535 {
				return false
			}
		}
		return true
	})
	if good && len(ports) > 0 {
		c.addPlugin("portmap", c.portmap, map[string]any{"portMappings": ports})
	}
	var b bandwidth
	good = f.get("bandwidth", &b, "whole numbers, rates and bursts together, or neither", func() bool {
		return (b.IngressRate == 0) == (b.IngressBurst == 0) && (b.EgressRate == 0) == (b.EgressBurst == 0)
	})
	if good && b != (bandwidth{}) {
		c.addPlugin("bandwidth", nil, map[string]any{"bandwidth": b})
	}
}

func (c *config) addPlugin(kind string, settings map[string]json.RawMessage, runtimeConfig map[string]any) {
	version := c.version
	if version == "" {
		version = "0.4.0"
	}
	conf := map[string]json.RawMessage{}
	maps.Copy(conf, settings)
	conf["cniVersion"], conf["name"], conf["type"] = toJSON(version), toJSON(c.name), toJSON(kind)
	conf["runtimeConfig"] = toJSON(runtimeConfig)
	c.plugins = append(c.plugins, delegate.Plugin{Type: kind, Conf: conf})
}

// toJSON encodes a value that always has a form as JSON.
func toJSON(v any) json.RawMessage {
	data, _ := json.Marshal(v)
	return data
}

// readArgs reads args.cni, an older form of runtimeConfig; other args, and bad ones, are for other plugins.
func (c *config) readArgs(raw json.RawMessage) {
	var args struct{ CNI json.RawMessage }
	if json.Unmarshal(raw, &args) != nil {
		return
	}
	if f, err := parseFields("args.cni.", args.CNI, new([]error)); err == nil {
		c.readIdentity(f)
	}
}

// readIdentity reads the addresses that the pod should get.
func (c *config) readIdentity(f *fields) {
	var ips []string
	if f.get("ips", &ips, "a list of addresses") {
		c.want(f, "ips", ips)
	}
	mac := ""
	if f.get("mac", &mac, "a hardware address") && mac != "" {
		c.wantMAC(f, "mac", mac)
	}
}

// want notes addresses that the pod should get; a prefix length is allowed and ignored.
func (c *config) want(f *fields, key string, ips []string) {
	for _, s := range ips {
		bare, _, _ := strings.Cut(s, "/")
		a, err := netip.ParseAddr(strings.TrimSpace(bare))
		if err != nil || a.Zone() != "" {
			f.bad(key, []byte(s), "an address such as 10.244.1.9")
			continue
		}
		c.wanted = append(c.wanted, a.Unmap())
	}
}

func (c *config) wantMAC(f *fields, key, value string) {
	mac, err := netstate.ParseMAC(value)
	if err != nil || !mac.IsUnicast() {
		f.bad(key, []byte(value), "a unicast hardware address of the form 0a:58:0a:f4:01:02")
		return
	}
	c.mac = mac
}

// readEnvironment reads IP and MAC of CNI_ARGS ("IgnoreUnknown=1;IP=10.244.1.9"). They count where the config
// says nothing; everything else in it is for other plugins.
func (c *config) readEnvironment(args string) error {
	var errs []error
	f := &fields{path: "CNI_ARGS ", errs: &errs}
	for pair := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); {
		case key == "IP" && len(c.wanted) == 0 && value != "":
			c.want(f, key, strings.Split(value, ","))
		case key == "MAC" && c.mac == netstate.MAC{} && value != "":
			c.wantMAC(f, key, value)
		}
	}
	if len(errs) > 0 {
		return cnierr.New(types.ErrInvalidEnvironmentVariables, "%v", errs[0])
	}
	return nil
}
