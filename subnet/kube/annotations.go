package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// annotations are the full names of flannel's annotations under one prefix.
type annotations struct {
	prefix, managed, backend string        // the prefix with its last slash or hyphen
	node, asks               string        // of Lease objects: whose they are where no Node owns them; read Nodes
	both                     []familyNames // IPv4 first
	families                 []familyNames // those of the network config
	external                 bool          // publish the node's ExternalIP
}

// familyNames are the annotations of one address family.
type familyNames struct {
	family                          netstate.Family
	network                         netip.Prefix // of the network config
	data, public, overwrite, choose string
	dataName, publicName            string // without the prefix, for messages
	longest                         int    // prefix length that leaves room for pods
}

// prefixForm is a domain name, a slash, and perhaps the beginning of a name.
var prefixForm = regexp.MustCompile(`^([a-z0-9_-]+\.)+[a-z0-9_-]+/([a-z0-9_-]+-)?$`)

// fullPrefix completes a prefix as flannel does: example.com gives example.com/backend-type, and example.com/net
// gives example.com/net-backend-type.
func fullPrefix(given string) (string, error) {
	prefix := given
	if !strings.Contains(prefix, "/") {
		prefix += "/"
	}
	if !strings.HasSuffix(prefix, "/") && !strings.HasSuffix(prefix, "-") {
		prefix += "-"
	}
	if !prefixForm.MatchString(prefix) {
		return "", fmt.Errorf("annotation prefix %q: want a domain name like %s, or one with a slash and a name",
			given, DefaultPrefix)
	}
	return prefix, nil
}

func newAnnotations(prefix string, pools []subnet.Pool) annotations {
	a := annotations{prefix: prefix, managed: prefix + "kube-subnet-manager", backend: prefix + "backend-type",
		node: prefix + "node-name", asks: prefix + "read-nodes"}
	for _, f := range netstate.Families {
		n := familyNames{family: f, dataName: "backend-data", publicName: "public-ip", longest: f.Bits() - 2}
		if f == netstate.IPv6 {
			n.dataName, n.publicName = "backend-v6-data", "public-ipv6"
		}
		n.data, n.public = prefix+n.dataName, prefix+n.publicName
		n.overwrite, n.choose = n.public+"-overwrite", prefix+"node-"+n.publicName
		a.both = append(a.both, n)
		if i := slices.IndexFunc(pools, func(p subnet.Pool) bool { return p.Family() == f }); i >= 0 {
			n.network = pools[i].Network
			a.families = append(a.families, n)
		}
	}
	return a
}

// What peers say is bounded, because every node keeps it.
const (
	maxData = 4 << 10 // bytes of backend-data
	maxText = 64      // bytes of any other annotation
)

func within(name, value string, most int) error {
	if len(value) > most {
		return fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return nil
}

// address reads an annotation that names a node's address.
func (f familyNames) address(name, value string) (netip.Addr, error) {
	if err := within(name, value, maxText); err != nil {
		return netip.Addr{}, err
	}
	a, err := netip.ParseAddr(value)
	if err != nil || netstate.FamilyOf(a) != f.family || a.Is4In6() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s %q is not an %s address", name, value, f.family)
	}
	if a.IsUnspecified() || a.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("%s %q is not an address of one host", name, value)
	}
	return a, nil
}

// payload reads backend-data, which flannel writes as "null" for a backend that publishes nothing.
func (f familyNames) payload(value string) (json.RawMessage, error) {
	if value == "" {
		return nil, nil
	}
	if err := within(f.dataName, value, maxData); err != nil {
		return nil, err
	}
	var data json.RawMessage
	if err := json.Unmarshal([]byte(value), &data); err != nil {
		return nil, fmt.Errorf("%s %.80q: %w", f.dataName, value, err)
	}
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return nil, nil
	}
	return data, nil
}

// encode returns the annotations that publish l; nil removes one. Annotations of a family that l does not have are
// removed, or peers would still send to an address that nobody keeps up to date.
func (a annotations) encode(l subnet.Lease) map[string]*string {
	set := map[string]*string{a.managed: new("true"), a.backend: new(l.Backend)}
	for _, f := range a.both {
		set[f.data], set[f.public] = nil, nil
		if st, ok := l.Stack(f.family); ok {
			set[f.data], set[f.public] = new(encodePayload(st.Data)), new(st.Underlay.String())
		}
	}
	return set
}

func encodePayload(data json.RawMessage) string {
	var b bytes.Buffer
	if len(data) == 0 || json.Compact(&b, data) != nil {
		return "null"
	}
	return b.String()
}

// missing returns what must be written so that r publishes l, empty if r already does.
func (a annotations) missing(l subnet.Lease, r record) map[string]*string {
	have := map[string]string{a.managed: r.managed, a.backend: r.backend}
	for _, f := range a.both {
		have[f.data], have[f.public] = r.of(f.family).data, r.of(f.family).public
	}
	want := a.encode(l)
	for key, value := range want {
		if value == nil && have[key] == "" || value != nil && have[key] == *value {
			delete(want, key)
		}
	}
	return want
}
