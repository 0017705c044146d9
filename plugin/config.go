package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/netstate"
)

// config is the network config, with every default filled in. It is Twill's own form and flannel's (delegate,
// subnetFile, dataDir, ipam.routes) at once.
type config struct {
	version        string // cniVersion
	name           string
	mtu            int // 0: what subnet.env says
	hairpin        bool
	defaultGateway bool
	isolated       bool // the pod's port talks to the bridge only
	checkMAC       bool // frames with another source address than the pod's are dropped
	bridge         string
	subnetFile     string
	networksDir    string // host-local's directory; one folder a network
	flannelDir     string // where flannel's plugin keeps a file per container
	ranges         []rangeSet
	routes         []route
	dns            types.DNS
	wanted         []netip.Addr // what this pod should get
	mac            netstate.MAC // zero: it follows from the address
	ports          []portMapping
	bandwidth      bandwidth
	portmap        map[string]json.RawMessage // settings that are passed to portmap
	prevResult     json.RawMessage
	attachments    json.RawMessage // nil: absent; "null": there are none
	warnings       []string
}

// parseConfig reads a network config. Even with an error the config is usable as far as it could be read: DEL
// has to work with whatever there is.
func parseConfig(data []byte) (*config, error) {
	c := &config{hairpin: true, defaultGateway: true, bridge: "cni0", subnetFile: "/run/flannel/subnet.env",
		networksDir: "/var/lib/cni/networks", flannelDir: "/var/lib/cni/flannel"}
	f, err := parseFields("", data)
	if err != nil {
		return c, failure(types.ErrDecodingFailure, "network config: %v", err)
	}
	c.frame(f)
	if raw := f.raw("delegate"); raw != nil {
		c.delegate(f, raw)
	}
	c.settings(f)
	c.runtime(f)
	c.warnings = append(c.warnings, f.unknown()...)
	if len(f.errs) > 0 {
		return c, failure(types.ErrInvalidNetworkConfig, "%v", errors.Join(f.errs...))
	}
	return c, nil
}

// frame takes what the CNI specification defines and what stands at the top level only.
func (c *config) frame(f *fields) {
	kind, dir := "twill", ""
	f.get("cniVersion", "a version", &c.version)
	f.get("name", "a network name", &c.name)
	f.get("type", "a plugin name", &kind)
	f.get("dns", "an object", &c.dns)
	f.get("subnetFile", "a path", &c.subnetFile)
	if f.get("dataDir", "a directory", &dir) && kind == "flannel" {
		c.flannelDir = dir // in a flannel config it is where flannel kept a file per container
	} else if dir != "" {
		c.networksDir = dir
	}
	c.prevResult = f.raw("prevResult")
	c.attachments = f.take("cni.dev/valid-attachments")
	f.get("portmap", "an object with settings for the portmap plugin", &c.portmap)
	for _, key := range []string{"capabilities", "cni.dev/attachments", "disableCheck", "disableGC"} {
		f.take(key)
	}
}

// delegate takes the part of a flannel config that was meant for the bridge plugin.
func (c *config) delegate(f *fields, raw json.RawMessage) {
	d, err := parseFields("delegate.", raw)
	if err != nil {
		f.bad("delegate", raw, "an object with the bridge's settings")
		return
	}
	kind := "bridge"
	if d.get("type", "bridge", &kind); kind != "bridge" {
		d.bad("type", []byte(kind), "bridge or nothing: twill wires pods to a bridge itself")
	}
	d.take("name")
	d.take("cniVersion")
	c.settings(d)
	f.errs = append(f.errs, d.errs...)
	c.warnings = append(c.warnings, d.unknown()...)
}

// settings takes the keys that can stand at the top level or in delegate.
func (c *config) settings(f *fields) {
	masq := false
	if f.get("mtu", "a number of bytes from 68 to 65535, or 0 for the lease's", &c.mtu) && c.mtu != 0 && (c.mtu < 68 || c.mtu > 65535) {
		f.bad("mtu", fmt.Append(nil, c.mtu), "a number of bytes from 68 to 65535, or 0 for the lease's")
	}
	if f.get("bridge", "an interface name", &c.bridge) && !validDev(c.bridge) {
		f.bad("bridge", []byte(c.bridge), "an interface name of 1 to 15 characters")
	}
	f.get("hairpinMode", "true or false", &c.hairpin)
	f.get("isDefaultGateway", "true or false", &c.defaultGateway)
	f.get("portIsolation", "true or false", &c.isolated)
	f.get("macspoofchk", "true or false", &c.checkMAC)
	f.take("isGateway") // the bridge always has the gateway's address
	f.take("forceAddress")
	if f.get("ipMasq", "true or false", &masq) && masq {
		c.warnings = append(c.warnings, f.path+"ipMasq is ignored: the agent masquerades for all pods (twilld --ip-masq)")
	}
	if raw := f.raw("ipam"); raw != nil {
		c.ipam(f, raw)
	}
}

func validDev(name string) bool {
	return len(name) > 0 && len(name) < 16 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\x00")
}

func (c *config) ipam(f *fields, raw json.RawMessage) {
	i, err := parseFields(f.path+"ipam.", raw)
	if err != nil {
		f.bad("ipam", raw, "an object")
		return
	}
	kind := "host-local"
	if i.get("type", "host-local", &kind); kind != "host-local" && kind != "twill" && kind != "" {
		i.bad("type", []byte(kind), "host-local or nothing: twill hands out the lease's addresses itself")
	}
	i.get("dataDir", "a directory", &c.networksDir)
	if raw := i.raw("routes"); raw != nil {
		c.takeRoutes(i, raw)
	}
	if raw := i.raw("ranges"); raw != nil {
		c.takeRanges(i, "ranges", raw)
	}
	c.takeSubnet(i)
	c.takeResolver(i)
	f.errs = append(f.errs, i.errs...)
	c.warnings = append(c.warnings, i.unknown()...)
}

func (c *config) takeRoutes(f *fields, raw json.RawMessage) {
	const want = `a list of {"dst": "10.0.0.0/8", "gw": "…"}, gw being optional`
	var routes []struct {
		Dst netip.Prefix
		GW  netip.Addr
	}
	if json.Unmarshal(raw, &routes) != nil {
		f.bad("routes", raw, want)
		return
	}
	for _, r := range routes {
		if !r.Dst.IsValid() || (r.GW.IsValid() && r.GW.Is4() != r.Dst.Addr().Is4()) {
			f.bad("routes", raw, want)
			return
		}
		c.routes = append(c.routes, route{r.Dst.Masked(), r.GW})
	}
}

func (c *config) takeRanges(f *fields, key string, raw json.RawMessage) {
	var sets [][]struct {
		Subnet                        netip.Prefix
		RangeStart, RangeEnd, Gateway netip.Addr
	}
	if json.Unmarshal(raw, &sets) != nil {
		f.bad(key, raw, `a list of lists of {"subnet", "rangeStart", "rangeEnd", "gateway"}`)
		return
	}
	c.ranges = nil
	for _, set := range sets {
		var rs rangeSet
		for _, r := range set {
			rng, err := newRange(r.Subnet, r.RangeStart, r.RangeEnd, r.Gateway)
			if err != nil {
				f.errs = append(f.errs, fmt.Errorf("%s%s: %w", f.path, key, err))
				continue
			}
			rs = append(rs, rng)
		}
		if len(rs) > 0 {
			c.ranges = append(c.ranges, rs)
		}
	}
}

// takeSubnet takes the older form of one range, which counts before the others.
func (c *config) takeSubnet(i *fields) {
	one := map[string]json.RawMessage{}
	for _, key := range []string{"subnet", "rangeStart", "rangeEnd", "gateway"} {
		if raw := i.raw(key); raw != nil {
			one[key] = raw
		}
	}
	if one["subnet"] == nil {
		return
	}
	others := c.ranges
	c.takeRanges(i, "subnet", quote([][]map[string]json.RawMessage{{one}}))
	c.ranges = append(c.ranges, others...)
}

// takeResolver takes the resolver from a file of the form of resolv.conf(5).
func (c *config) takeResolver(i *fields) {
	path := ""
	if !i.get("resolvConf", "a path", &path) || path == "" {
		return
	}
	data, err := os.ReadFile(path)
	if err != nil {
		i.bad("resolvConf", []byte(path), "a file that can be read")
		return
	}
	c.dns = types.DNS{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			c.dns.Nameservers = append(c.dns.Nameservers, f[1])
		case "domain":
			c.dns.Domain = f[1]
		case "search":
			c.dns.Search = append(c.dns.Search, f[1:]...)
		case "options":
			c.dns.Options = append(c.dns.Options, f[1:]...)
		}
	}
}

// storeDir is where the reservations of this network are.
func (c *config) storeDir() string { return filepath.Join(c.networksDir, c.name) }
