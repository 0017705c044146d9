package subnet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/internal/jsonobject"
	"github.com/twill-net/twill/netstate"
)

// Config is the cluster's network config, flannel's net-conf.json.
type Config struct {
	Pools    []Pool          // one per enabled address family, IPv4 first; never empty
	NFTables *bool           // EnableNFTables; nil when it is not said
	Backend  string          // Backend's Type in lower case
	Options  json.RawMessage // the whole Backend object, never empty; its other keys are the backend's business
	Warnings []string        // one sentence each: what works but is probably a mistake
	Raw      []byte          // the net-conf.json as it was read

	// Kept are the Backend objects of earlier configs by which peers may still reach this node, the newest first. They are none
	// of net-conf.json's: the agent's checkpoint has them.
	Kept []json.RawMessage

	// Store is where agents with the Kubernetes store publish leases and read them: one of the values below; empty when
	// it is not said, which is StoreNodes.
	Store string
}

// The values of Store. Annotations of Nodes are always written, so that nodes with different values are peers.
const (
	StoreNodes  = "nodes"  // leases are annotations of Nodes
	StoreBoth   = "both"   // they are written to Lease objects, too
	StoreLeases = "leases" // and read from there
)

// defaultBackend is flannel's recommendation. Flannel itself falls back to udp, which is slow and for debugging.
const defaultBackend = "vxlan"

// Pool returns the pool of one address family, and whether there is one.
func (c Config) Pool(f netstate.Family) (Pool, bool) {
	for _, p := range c.Pools {
		if p.Family() == f {
			return p, true
		}
	}
	return Pool{}, false
}

// ParseConfig reads a net-conf.json. As in flannel, keys are case-insensitive, null is the same as absent, IPv4
// is enabled and IPv6 is not unless the config says otherwise, and host bits of a network are cut off.
func ParseConfig(data []byte) (Config, error) {
	obj, err := jsonobject.Parse(data)
	if err != nil {
		return Config{}, err
	}
	c := Config{Raw: bytes.Clone(data)}
	for _, key := range obj.Repeated {
		c.warn("key %q is there more than once: the last one counts", key)
	}
	for _, step := range []func(jsonobject.Object) error{c.pools, c.firewall, c.backend, c.store} {
		if err := step(obj); err != nil {
			return Config{}, err
		}
	}
	for _, key := range obj.Rest() {
		if !slices.ContainsFunc(knownKeys, func(known string) bool { return strings.EqualFold(key, known) }) {
			c.warn("key %q is unknown and has no effect%s", key, obj.Hint(key, knownKeys...))
		}
	}
	return c, nil
}

// WithBackend returns c with the key Backend of another config.
func (c Config) WithBackend(of Config) (Config, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(c.Raw, &keys); err != nil {
		return Config{}, err
	}
	for key := range keys {
		if strings.EqualFold(key, "Backend") {
			delete(keys, key)
		}
	}
	keys["Backend"] = of.Options
	data, err := json.Marshal(keys)
	if err != nil {
		return Config{}, err
	}
	return ParseConfig(data)
}

// knownKeys are all keys. Those of a family that is not enabled are not read.
var knownKeys = []string{"EnableIPv4", "EnableIPv6", "EnableNFTables", "Backend", "Store",
	"Network", "SubnetLen", "SubnetMin", "SubnetMax",
	"IPv6Network", "IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax"}

func (c *Config) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

func (c *Config) pools(obj jsonobject.Object) error {
	for _, f := range familyKeys {
		enabled := f.family == netstate.IPv4
		if _, err := obj.Get(f.enable, &enabled, "true or false"); err != nil {
			return err
		}
		if !enabled {
			if obj.Has(f.prefix + "Network") {
				c.warn("%sNetwork has no effect because %s is not true", f.prefix, f.enable)
			}
			continue
		}
		p, err := c.pool(obj, f)
		if err != nil {
			return err
		}
		c.Pools = append(c.Pools, p)
	}
	if len(c.Pools) == 0 {
		return fmt.Errorf("EnableIPv4 and EnableIPv6 are both false: at least one must be true")
	}
	return nil
}

func (c *Config) firewall(obj jsonobject.Object) error {
	var nft bool
	if ok, err := obj.Get("EnableNFTables", &nft, "true or false"); err != nil || !ok {
		return err
	}
	c.NFTables = &nft
	return nil
}

func (c *Config) backend(obj jsonobject.Object) error {
	if !obj.Has("Backend") {
		c.Backend, c.Options = defaultBackend, json.RawMessage(`{"Type":"`+defaultBackend+`"}`)
		c.warn("Backend is missing: using %s", defaultBackend)
		return nil
	}
	raw := obj.Raw("Backend")
	options, err := jsonobject.Parse(raw)
	if err != nil {
		return fmt.Errorf("key Backend is %s: want an object such as {\"Type\": \"vxlan\"}", jsonobject.Brief(raw))
	}
	kind := defaultBackend
	if ok, err := options.Get("Type", &kind, `a string such as "vxlan"`); err != nil {
		return fmt.Errorf("key Backend: %w", err)
	} else if !ok {
		c.warn("Backend has no Type: using %s", defaultBackend)
	}
	if kind == "" {
		return fmt.Errorf(`key Backend has an empty Type: want a backend's name such as "vxlan"`)
	}
	c.Backend, c.Options = strings.ToLower(kind), raw
	return nil
}

func (c *Config) store(obj jsonobject.Object) error {
	want := fmt.Sprintf("%q, %q or %q", StoreNodes, StoreBoth, StoreLeases)
	if ok, err := obj.Get("Store", &c.Store, want); err != nil || !ok {
		return err
	}
	if c.Store != StoreNodes && c.Store != StoreBoth && c.Store != StoreLeases {
		return fmt.Errorf("Store %.40q: want %s", c.Store, want)
	}
	return nil
}

// familyKey is what differs between the keys of IPv4 and of IPv6.
type familyKey struct {
	family  netstate.Family
	enable  string // the key that enables it
	prefix  string // of its other keys
	length  int    // SubnetLen unless the network is too long for it
	longest int    // SubnetLen: a subnet needs room for a tunnel and a bridge address
	example string
}

var familyKeys = []familyKey{
	{family: netstate.IPv4, enable: "EnableIPv4", length: 24, longest: 30, example: "10.244.0.0/16"},
	{family: netstate.IPv6, enable: "EnableIPv6", prefix: "IPv6", length: 64, longest: 126, example: "fd00:10:244::/48"},
}

func (c *Config) pool(obj jsonobject.Object, f familyKey) (Pool, error) {
	network, err := c.network(obj, f)
	if err != nil {
		return Pool{}, err
	}
	length, err := subnetLen(obj, f, network)
	if err != nil {
		return Pool{}, err
	}
	p := Pool{Network: network, SubnetLen: length}
	first, last := network.Addr(), netip.PrefixFrom(lastAddr(network), length).Masked().Addr()
	if p.Min, err = bound(obj, f.prefix+"SubnetMin", p, first); err != nil {
		return Pool{}, err
	}
	if p.Max, err = bound(obj, f.prefix+"SubnetMax", p, last); err != nil {
		return Pool{}, err
	}
	if p.Max.Less(p.Min) {
		return Pool{}, fmt.Errorf("%[1]sSubnetMax %[2]s is before %[1]sSubnetMin %[3]s: exchange them",
			f.prefix, p.Max, p.Min)
	}
	return p, nil
}

func (c *Config) network(obj jsonobject.Object, f familyKey) (netip.Prefix, error) {
	key, text := f.prefix+"Network", ""
	if ok, err := obj.Get(key, &text, "a string such as \""+f.example+"\""); err != nil {
		return netip.Prefix{}, err
	} else if !ok {
		return netip.Prefix{}, fmt.Errorf("%s is missing: want a network such as %q, or %s false", key, f.example, f.enable)
	}
	n, err := netip.ParsePrefix(text)
	if err != nil || netstate.FamilyOf(n.Addr()) != f.family || n.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%s %q is not an %s network: want one such as %q", key, text, f.family, f.example)
	}
	if n.Bits() == 0 {
		return netip.Prefix{}, fmt.Errorf("%s %q holds every address: want a network such as %q", key, text, f.example)
	}
	if n != n.Masked() {
		c.warn("%s %s has host bits set: using %s", key, n, n.Masked())
		n = n.Masked()
	}
	if what := reserved(n); what != "" {
		return netip.Prefix{}, fmt.Errorf("%s %s: want a network such as %q: %s", key, n, f.example, what)
	}
	if !isPrivate(n) {
		c.warn("%s %s is not a private range: "+
			"pods will not reach the hosts on the internet that have these addresses", key, n)
	}
	return n, nil
}

// subnetLen follows flannel: at least four subnets fit into the network, and by default each node gets a /24
// (IPv6: a /64), or a quarter of a network that is too small for that.
func subnetLen(obj jsonobject.Object, f familyKey, network netip.Prefix) (int, error) {
	key, least := f.prefix+"SubnetLen", network.Bits()+2
	if least > f.longest {
		return 0, fmt.Errorf("%sNetwork %s is too small: want a /%d or larger", f.prefix, network, f.longest-2)
	}
	length := 0
	if _, err := obj.Get(key, &length, fmt.Sprintf("a number from %d to %d", least, f.longest)); err != nil {
		return 0, err
	}
	if length == 0 {
		return max(f.length, least), nil
	}
	if length < least || length > f.longest {
		return 0, fmt.Errorf("%s %d does not fit %sNetwork %s: want a number from %d to %d",
			key, length, f.prefix, network, least, f.longest)
	}
	return length, nil
}

// bound returns SubnetMin or SubnetMax, which is the first address of a subnet of p, or otherwise when the key is
// absent (or, as in flannel, zero).
func bound(obj jsonobject.Object, key string, p Pool, otherwise netip.Addr) (netip.Addr, error) {
	text := ""
	want := fmt.Sprintf("an address in %s such as %q", p.Network, otherwise)
	if ok, err := obj.Get(key, &text, want); err != nil || !ok {
		return otherwise, err
	}
	a, err := netip.ParseAddr(text)
	if err == nil && a.IsUnspecified() && netstate.FamilyOf(a) == p.Family() {
		return otherwise, nil
	}
	if err != nil || !p.Network.Contains(a) {
		return netip.Addr{}, fmt.Errorf("%s %q is not in the network: want %s", key, text, want)
	}
	if start := netip.PrefixFrom(a, p.SubnetLen).Masked().Addr(); start != a {
		return netip.Addr{}, fmt.Errorf("%s %s is not the start of a /%d: want %s", key, a, p.SubnetLen, start)
	}
	return a, nil
}

// reservedRanges are networks of which no pod can have an address. The rest of 240.0.0.0/4 is used by some, and works.
var reservedRanges = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "addresses that begin with 0 are no host's"},
	{netip.MustParsePrefix("127.0.0.0/8"), "addresses of the loopback leave no host"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local addresses are not routed"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast addresses are no host's"},
	{netip.MustParsePrefix("::1/128"), "addresses of the loopback leave no host"},
	{netip.MustParsePrefix("fe80::/10"), "link-local addresses are not routed"},
	{netip.MustParsePrefix("ff00::/8"), "multicast addresses are no host's"},
}

// reserved returns why a network that overlaps a reserved one cannot be that of pods, empty if it overlaps none.
func reserved(n netip.Prefix) string {
	for _, r := range reservedRanges {
		if r.prefix.Overlaps(n) {
			return r.what
		}
	}
	return ""
}

var privateRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT, RFC 6598
	netip.MustParsePrefix("fc00::/7"),
}

func isPrivate(n netip.Prefix) bool {
	for _, r := range privateRanges {
		if r.Bits() <= n.Bits() && r.Contains(n.Addr()) {
			return true
		}
	}
	return false
}
