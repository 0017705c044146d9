package etcd

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// record is one key below <prefix>/subnets/ with its value.
type record struct {
	name    string         // the last element of the key: 10.5.52.0-24, 10.5.52.0-24&fc00::-64
	subnets []netip.Prefix // what the name claims, also when the value is malformed
	lease   subnet.Lease   // zero if err is not nil
	named   bool           // the value has the node's name; flannel's do not
	err     error          // why the record cannot be read

	value       string
	create, mod int64 // revisions
	leaseID     int64 // 0: a reservation
}

func readRecord(name string, kv *mvccpb.KeyValue) record {
	r := record{name: name, value: string(kv.Value), create: kv.CreateRevision, mod: kv.ModRevision, leaseID: kv.Lease}
	if r.subnets, r.err = parseName(name); r.err != nil {
		return r
	}
	r.lease, r.named, r.err = parseValue(r.subnets, kv.Value)
	return r
}

// shown returns the record's key for people: anybody who may write to etcd chooses it.
func (r record) shown() string {
	if subnet.CheckNode(strings.ReplaceAll(r.name, "&", "")) != nil {
		return strconv.Quote(r.name)
	}
	return r.name
}

// parseName reads a key's last element. Flannel defines no form for a node without IPv4; its code writes 0.0.0.0-0 in
// IPv4's place, and so does Twill.
func parseName(name string) ([]netip.Prefix, error) {
	var subnets []netip.Prefix
	first, second, both := strings.Cut(name, "&")
	s, err := parseSubnet(first)
	if err != nil || !s.Addr().Is4() {
		return nil, fmt.Errorf("key %q is not a subnet: want the form 10.5.52.0-24 or 10.5.52.0-24&fc00::-64", name)
	}
	if s.Bits() > 0 {
		subnets = append(subnets, s)
	}
	if both {
		if s, err = parseSubnet(second); err != nil || s.Addr().Is4() || s.Bits() == 0 {
			return nil, fmt.Errorf("key %q has no IPv6 subnet after &: want the form 10.5.52.0-24&fc00::-64", name)
		}
		subnets = append(subnets, s)
	}
	if len(subnets) == 0 {
		return nil, fmt.Errorf("key %q claims no subnet: want the form 10.5.52.0-24", name)
	}
	return subnets, nil
}

func parseSubnet(text string) (netip.Prefix, error) {
	address, length, _ := strings.Cut(text, "-")
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}, err
	}
	bits, err := strconv.ParseUint(length, 10, 8)
	if err != nil {
		return netip.Prefix{}, err
	}
	s := netip.PrefixFrom(a, int(bits))
	if !s.IsValid() || s != s.Masked() || a.Is4In6() || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%s is not a subnet", s)
	}
	return s, nil
}

// formatName is parseName's reverse.
func formatName(l subnet.Lease) string {
	first, second := "0.0.0.0-0", ""
	for _, s := range l.Stacks {
		text := fmt.Sprintf("%s-%d", s.Subnet.Addr(), s.Subnet.Bits())
		if s.Family() == netstate.IPv4 {
			first = text
		} else {
			second = "&" + text
		}
	}
	return first + second
}

// value is flannel's LeaseAttrs. Flannel refuses a PublicIP of null, and ignores keys that it does not know,
// so other Twills can read Node.
type value struct {
	PublicIP      *string
	PublicIPv6    *string
	BackendType   string          `json:",omitempty"`
	BackendData   json.RawMessage `json:",omitempty"`
	BackendV6Data json.RawMessage `json:",omitempty"`
	Node          string          `json:",omitempty"`
}

// noIPv4 is the PublicIP of a node without IPv4.
const noIPv4 = "0.0.0.0"

func parseValue(subnets []netip.Prefix, data []byte) (l subnet.Lease, named bool, err error) {
	var v value
	if err := json.Unmarshal(data, &v); err != nil {
		return subnet.Lease{}, false, fmt.Errorf("value %.60q is malformed: %w", data, err)
	}
	if v.Node != "" {
		if err := subnet.CheckNode(v.Node); err != nil {
			return subnet.Lease{}, false, err
		}
	}
	l = subnet.Lease{Node: v.Node, Backend: v.BackendType}
	for _, s := range subnets {
		key, text, data := "PublicIP", v.PublicIP, v.BackendData
		if !s.Addr().Is4() {
			key, text, data = "PublicIPv6", v.PublicIPv6, v.BackendV6Data
		}
		if text == nil {
			return subnet.Lease{}, false, fmt.Errorf("%s is missing for subnet %s", key, s)
		}
		a, err := netip.ParseAddr(*text)
		other := err != nil || netstate.FamilyOf(a) != netstate.FamilyOf(s.Addr())
		if other || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() {
			return subnet.Lease{}, false, fmt.Errorf("%s %q is not an address for subnet %s", key, *text, s)
		}
		l.Stacks = append(l.Stacks, subnet.Stack{Subnet: s, Underlay: a, Data: data})
	}
	if named = l.Node != ""; !named {
		l.Node = publicIP(l)
	}
	return l, named, nil
}

// publicIP returns the name of a node whose record has none, as every record of flannel's.
func publicIP(l subnet.Lease) string { return l.Stacks[0].Underlay.String() }

// formatValue is parseValue's reverse.
func formatValue(l subnet.Lease) (string, error) {
	none := noIPv4
	v := value{PublicIP: &none, BackendType: l.Backend, Node: l.Node}
	for _, s := range l.Stacks {
		ip := s.Underlay.String()
		if s.Family() == netstate.IPv4 {
			v.PublicIP, v.BackendData = &ip, s.Data
		} else {
			v.PublicIPv6, v.BackendV6Data = &ip, s.Data
		}
	}
	data, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode the lease of node %q: %w", l.Node, err)
	}
	return string(data), nil
}
