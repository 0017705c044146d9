package subnet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/twill-net/twill/internal/smallfile"
	"github.com/twill-net/twill/netstate"
)

// Env is a subnet.env, the file in which the CNI plugin finds the agent's lease. The plugin reads it with the standard
// library only.
type Env struct {
	Networks []netip.Prefix // the cluster's pods, IPv4 first; several per family are allowed
	Subnets  []netip.Prefix // the node's pods with the gateway's address, 10.244.1.1/24: at most one per family, IPv4 first
	MTU      int            // of a pod, in bytes
	IPMasq   bool           // the agent masquerades, so the plugin must not
	NodeUID  string         // TWILL_NODE_UID; empty: unknown
	BootID   string         // TWILL_BOOT_ID, of the boot in which the file was written; empty: unknown
}

// BootID returns the kernel's name of this boot, empty if it has none.
func BootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// Subnet returns the node's subnet of one address family, masked, and whether there is one.
func (e Env) Subnet(f netstate.Family) (netip.Prefix, bool) {
	for _, s := range e.Subnets {
		if netstate.FamilyOf(s.Addr()) == f {
			return s.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

// ParseEnv reads a subnet.env that flannel or Twill wrote. Unknown keys, blank lines and # comments are ignored.
func ParseEnv(data []byte) (Env, error) {
	var e Env
	seen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return Env{}, fmt.Errorf("line %.40q is not a setting: want KEY=value", line)
		}
		if seen[key] {
			return Env{}, fmt.Errorf("%s is there more than once: want it once", key)
		}
		seen[key] = true
		if err := e.set(key, value); err != nil {
			return Env{}, err
		}
	}
	return e.checked(seen)
}

func (e *Env) set(key, value string) (err error) {
	switch key {
	case "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK":
		networks, err := parsePrefixes(key, value)
		for _, n := range networks {
			e.Networks = put4First(e.Networks, n.Masked())
		}
		return err
	case "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET":
		subnets, err := parsePrefixes(key, value)
		if len(subnets) > 1 {
			return fmt.Errorf("%s %q has several subnets: want one", key, value)
		}
		for _, s := range subnets {
			e.Subnets = put4First(e.Subnets, s)
		}
		return err
	case "FLANNEL_MTU":
		if e.MTU, err = strconv.Atoi(value); err != nil || e.MTU < 1 || e.MTU > 65535 {
			return fmt.Errorf("%s %q: want a number from 1 to 65535", key, value)
		}
	case "FLANNEL_IPMASQ":
		if value != "true" && value != "false" {
			return fmt.Errorf("%s %q: want true or false", key, value)
		}
		e.IPMasq = value == "true"
	case "TWILL_NODE_UID":
		e.NodeUID = value
	case "TWILL_BOOT_ID":
		e.BootID = value
	}
	return nil
}

// put4First appends p, but an IPv4 prefix before the first IPv6 one.
func put4First(list []netip.Prefix, p netip.Prefix) []netip.Prefix {
	if !p.Addr().Is4() {
		return append(list, p)
	}
	i := 0
	for i < len(list) && list[i].Addr().Is4() {
		i++
	}
	return append(list[:i:i], append([]netip.Prefix{p}, list[i:]...)...)
}

// parsePrefixes reads one or more prefixes of the family that key names. Flannel wrote lists with commas while
// it supported several cluster CIDRs, and its CNI plugin still reads them.
func parsePrefixes(key, value string) (prefixes []netip.Prefix, err error) {
	family, example := netstate.IPv4, "10.244.1.1/24"
	if strings.HasPrefix(key, "FLANNEL_IPV6_") {
		family, example = netstate.IPv6, "fd00:10:244:1::1/64"
	}
	for text := range strings.SplitSeq(value, ",") {
		p, err := netip.ParsePrefix(text)
		if err != nil || netstate.FamilyOf(p.Addr()) != family || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s %q is not an %s prefix: want one such as %s", key, text, family, example)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}

func (e Env) checked(seen map[string]bool) (Env, error) {
	if len(e.Subnets) == 0 {
		return Env{}, errors.New("FLANNEL_SUBNET and FLANNEL_IPV6_SUBNET are missing: want at least one")
	}
	for _, key := range []string{"FLANNEL_MTU", "FLANNEL_IPMASQ"} {
		if !seen[key] {
			return Env{}, fmt.Errorf("%s is missing: want it in every subnet.env", key)
		}
	}
	for _, key := range []string{"FLANNEL_", "FLANNEL_IPV6_"} {
		if seen[key+"SUBNET"] != seen[key+"NETWORK"] {
			return Env{}, fmt.Errorf("only one of %[1]sNETWORK and %[1]sSUBNET is there: want both", key)
		}
	}
	return e, nil
}

// Format returns the file's text: byte for byte what flannel writes, and then Twill's own lines.
func (e Env) Format() []byte {
	var b bytes.Buffer
	for _, f := range []struct {
		prefix string
		family netstate.Family
	}{{"FLANNEL_", netstate.IPv4}, {"FLANNEL_IPV6_", netstate.IPv6}} {
		line(&b, f.prefix+"NETWORK", join(e.Networks, f.family))
		line(&b, f.prefix+"SUBNET", join(e.Subnets, f.family))
	}
	fmt.Fprintf(&b, "FLANNEL_MTU=%d\nFLANNEL_IPMASQ=%t\n", e.MTU, e.IPMasq)
	line(&b, "TWILL_NODE_UID", e.NodeUID)
	line(&b, "TWILL_BOOT_ID", e.BootID)
	return b.Bytes()
}

func line(b *bytes.Buffer, key, value string) {
	if value != "" {
		fmt.Fprintf(b, "%s=%s\n", key, value)
	}
}

func join(prefixes []netip.Prefix, f netstate.Family) string {
	var texts []string
	for _, p := range prefixes {
		if netstate.FamilyOf(p.Addr()) == f {
			texts = append(texts, p.String())
		}
	}
	return strings.Join(texts, ",")
}

// ReadEnv reads the subnet.env at path; the error is fs.ErrNotExist when there is none.
func ReadEnv(path string) (Env, error) {
	data, err := smallfile.Read(path, smallfile.MB)
	if err != nil {
		return Env{}, fmt.Errorf("read the lease of this node: %w", err)
	}
	e, err := ParseEnv(data)
	if err != nil {
		return Env{}, fmt.Errorf("%s: %w", path, err)
	}
	return e, nil
}
