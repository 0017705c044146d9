package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/netstate"
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

// runtime takes what the runtime says of this one pod (CONVENTIONS.md of containernetworking/cni). Runtimes write
// the keys in lower or in upper camel case; keys for other plugins are passed over.
func (c *config) runtime(f *fields) {
	if raw := f.raw("args"); raw != nil {
		c.fromArgs(raw)
	}
	raw := f.raw("runtimeConfig")
	if raw == nil {
		return
	}
	r, err := parseFields("runtimeConfig.", raw)
	if err != nil {
		f.bad("runtimeConfig", raw, "an object")
		return
	}
	c.pod(r)
	f.errs = append(f.errs, r.errs...)
}

func (c *config) pod(r *fields) {
	var ips []string
	if r.get("ips", "a list of addresses", &ips) {
		c.want(r, "ips", ips)
	}
	mac := ""
	if r.get("mac", "a hardware address", &mac) && mac != "" {
		c.wantMAC(r, "mac", mac)
	}
	if raw := r.raw("ipRanges"); raw != nil {
		configured := c.ranges
		c.takeRanges(r, "ipRanges", raw)
		c.ranges = append(c.ranges, configured...) // as host-local does
	}
	var dns struct{ Servers, Searches, Options []string }
	if r.get("dns", `{"servers": […], "searches": […]}`, &dns) && len(dns.Servers)+len(dns.Searches)+len(dns.Options) > 0 {
		c.dns = types.DNS{Nameservers: dns.Servers, Search: dns.Searches, Options: dns.Options}
	}
	c.takePorts(r)
	c.takeBandwidth(r)
}

func (c *config) takePorts(r *fields) {
	const want = `a list of {"hostPort", "containerPort", "protocol"}, ports being from 1 to 65535`
	var all []portMapping
	raw := r.raw("portMappings")
	if raw == nil {
		return
	}
	if json.Unmarshal(raw, &all) != nil {
		r.bad("portMappings", raw, want)
		return
	}
	for _, p := range all {
		if p.HostPort == 0 { // a port of the pod that nobody maps
			continue
		}
		if p.HostPort < 0 || p.HostPort > 65535 || p.ContainerPort < 1 || p.ContainerPort > 65535 {
			r.bad("portMappings", raw, want)
			return
		}
		p.Protocol = strings.ToLower(state(p.Protocol != "", p.Protocol, "tcp"))
		c.ports = append(c.ports, p)
	}
}

func (c *config) takeBandwidth(r *fields) {
	const want = "rates and bursts together, or neither"
	raw := r.raw("bandwidth")
	if raw == nil {
		return
	}
	var b bandwidth
	if json.Unmarshal(raw, &b) != nil || (b.IngressRate == 0) != (b.IngressBurst == 0) || (b.EgressRate == 0) != (b.EgressBurst == 0) {
		r.bad("bandwidth", raw, want)
		return
	}
	c.bandwidth = b
}

// fromArgs takes args.cni, an older form of the same; other args are for other plugins.
func (c *config) fromArgs(raw json.RawMessage) {
	var args struct{ CNI json.RawMessage }
	if json.Unmarshal(raw, &args) != nil || args.CNI == nil {
		return
	}
	r, err := parseFields("args.cni.", args.CNI)
	if err != nil {
		return
	}
	var ips []string
	if r.get("ips", "a list of addresses", &ips) {
		c.want(r, "ips", ips)
	}
	mac := ""
	if r.get("mac", "a hardware address", &mac) && mac != "" {
		c.wantMAC(r, "mac", mac)
	}
}

// want notes addresses that the pod should get; a prefix length is allowed and not looked at.
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

// fromEnvironment takes IP and MAC of CNI_ARGS ("IgnoreUnknown=1;IP=10.244.1.9"). They count where the config
// says nothing; everything else in it is for other plugins.
func (c *config) fromEnvironment(args string) error {
	f := &fields{path: "CNI_ARGS "}
	for pair := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); {
		case key == "IP" && len(c.wanted) == 0 && value != "":
			c.want(f, key, strings.Split(value, ","))
		case key == "MAC" && c.mac == netstate.MAC{} && value != "":
			c.wantMAC(f, key, value)
		}
	}
	if len(f.errs) > 0 {
		return failure(types.ErrInvalidEnvironmentVariables, "%v", f.errs[0])
	}
	return nil
}

// addons is the plugins that this pod needs beside this one.
func (c *config) addons() []addon {
	var all []addon
	if len(c.ports) > 0 {
		all = append(all, c.addon("portmap", c.portmap, "portMappings", c.ports))
	}
	if c.bandwidth != (bandwidth{}) {
		all = append(all, c.addon("bandwidth", nil, "bandwidth", c.bandwidth))
	}
	return all
}

func (c *config) addon(kind string, settings map[string]json.RawMessage, capability string, value any) addon {
	a := addon{Type: kind, Conf: map[string]json.RawMessage{}}
	for k, v := range settings {
		a.Conf[k] = v
	}
	a.Conf["cniVersion"] = quote(state(c.version != "", c.version, "0.4.0"))
	a.Conf["name"] = quote(c.name)
	a.Conf["type"] = quote(kind)
	a.Conf["runtimeConfig"] = quote(map[string]any{capability: value})
	return a
}

// quote is v as JSON; values here always have a form as JSON.
func quote(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	if err := e.Encode(v); err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err))
	}
	return bytes.TrimSpace(b.Bytes())
}
