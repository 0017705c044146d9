package plugin

import (
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/delegate"
	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

// config is the network config, with every default filled in. It is Twill's own form and flannel's (delegate,
// subnetFile, dataDir, ipam.routes) at once.
type config struct {
	version        string // cniVersion
	name           string
	mtu            int // 0: what subnet.env says
	defaultGateway bool
	port           wire.Port
	bridge         string
	subnetFile     string
	networksDir    string // host-local's directory; one folder a network
	flannelDir     string // where flannel's plugin keeps a file per container
	ranges         []ipam.RangeSet
	routes         []wire.Route
	dns            types.DNS
	wanted         []netip.Addr               // what this pod should get
	mac            netstate.MAC               // zero: it follows from the address
	plugins        []delegate.Plugin          // that this pod needs beside this one
	portmap        map[string]json.RawMessage // settings that are passed to portmap
	prevResult     json.RawMessage
	attachments    json.RawMessage // nil: absent; "null": there are none
	warnings       []string
}

// parseConfig reads a network config. Even with an error the config is usable as far as it could be read: DEL
// has to work with whatever there is.
func parseConfig(data []byte) (*config, error) {
	c := &config{port: wire.Port{Hairpin: true}, defaultGateway: true, bridge: "cni0",
		subnetFile: "/run/flannel/subnet.env", networksDir: "/var/lib/cni/networks", flannelDir: "/var/lib/cni/flannel"}
	var errs []error
	f, err := parseFields("", data, &errs)
	if err != nil {
		return c, cnierr.New(types.ErrDecodingFailure, "network config: %v", err)
	}
	c.readTop(f)
	c.readDelegate(f.object("delegate", "an object with the bridge's settings"))
	c.readSettings(f)
	c.readArgs(f.Raw("args"))
	c.readRuntimeConfig(f.object("runtimeConfig", "an object"))
	if err := ipam.CheckSets(c.ranges); err != nil {
		errs = append(errs, err)
	}
	c.warnings = append(c.warnings, f.unknown()...)
	if len(errs) > 0 {
		return c, cnierr.New(types.ErrInvalidNetworkConfig, "%v", errors.Join(errs...))
	}
	return c, nil
}

// readTop reads what the CNI specification defines and what can be at the top level only.
func (c *config) readTop(f *fields) {
	kind, dir := "twill", ""
	f.get("cniVersion", &c.version, "a version")
	f.get("name", &c.name, "a network name")
	f.get("type", &kind, "a plugin name")
	f.get("dns", &c.dns, "an object")
	f.get("subnetFile", &c.subnetFile, "a path")
	if f.get("dataDir", &dir, "a directory") && kind == "flannel" {
		c.flannelDir = dir // in a flannel config it is where flannel kept a file per container
	} else if dir != "" {
		c.networksDir = dir
	}
	c.prevResult = f.Raw("prevResult")
	c.attachments = f.Take("cni.dev/valid-attachments")
	f.get("portmap", &c.portmap, "an object with settings for the portmap plugin")
	for _, key := range []string{"capabilities", "cni.dev/attachments", "disableCheck", "disableGC"} {
		f.Take(key)
	}
}

// readDelegate reads the part of a flannel config that was meant for the bridge plugin.
func (c *config) readDelegate(f *fields) {
	kind := "bridge"
	f.get("type", &kind, "bridge or nothing: twill wires pods to a bridge itself", func() bool { return kind == "bridge" })
	f.Take("name")
	f.Take("cniVersion")
	c.readSettings(f)
	c.warnings = append(c.warnings, f.unknown()...)
}

// readSettings reads the keys that can be at the top level or in delegate.
func (c *config) readSettings(f *fields) {
	masq := false
	f.get("mtu", &c.mtu, "a number of bytes from 68 to 65535, or 0 for the lease's",
		func() bool { return c.mtu == 0 || c.mtu >= 68 && c.mtu <= 65535 })
	f.get("bridge", &c.bridge, "an interface name of 1 to 15 characters", func() bool { return validDev(c.bridge) })
	f.get("hairpinMode", &c.port.Hairpin, "true or false")
	f.get("isDefaultGateway", &c.defaultGateway, "true or false")
	f.get("portIsolation", &c.port.Isolated, "true or false")
	f.get("macspoofchk", &c.port.CheckMAC, "true or false")
	f.Take("isGateway") // the bridge always has the gateway's address
	f.Take("forceAddress")
	if f.get("ipMasq", &masq, "true or false") && masq {
		c.warnings = append(c.warnings, f.path+"ipMasq is ignored: the agent masquerades for all pods (twilld --ip-masq)")
	}
	c.readIPAM(f.object("ipam", "an object"))
}

func validDev(name string) bool {
	return len(name) > 0 && len(name) < 16 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\x00")
}

func (c *config) readIPAM(f *fields) {
	kind := ""
	f.get("type", &kind, "host-local or nothing: twill hands out the lease's addresses itself",
		func() bool { return kind == "host-local" || kind == "twill" || kind == "" })
	f.get("dataDir", &c.networksDir, "a directory")
	c.readRoutes(f)
	if raw := f.Raw("ranges"); raw != nil {
		c.ranges = nil
		c.readRanges(f, "ranges", raw)
	}
	c.readOneRange(f)
	path := ""
	f.get("resolvConf", &path, "a file that can be read", func() bool { return path == "" || c.readResolver(path) })
	c.warnings = append(c.warnings, f.unknown()...)
}

// readResolver reads a file of the form of resolv.conf(5) and reports whether it could.
func (c *config) readResolver(path string) bool {
	data, err := smallfile.Read(path, smallfile.MB)
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
	return err == nil
}

// store returns where the reservations of this network are.
func (c *config) store() ipam.Store { return ipam.Store(filepath.Join(c.networksDir, c.name)) }
