//go:build soak

package peers

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
)

// prefix is flannel's, of annotations.
const prefix = "flannel.alpha.coreos.com/"

// hostile makes what one node writes. The same seed makes the same.
type hostile struct {
	*rand.Rand
	node    string
	targets []target
	own     map[string]string // its true annotations
	near    []string          // addresses of the underlay that are nobody's, and of what is no node
}

// target is what everybody knows of another node.
type target struct {
	notes  map[string]string
	subnet netip.Prefix
	pod    netip.Addr
}

// write is one request; podCIDR is not what a kubelet may change.
type write struct {
	says, path string
	body       object
}

func pick[T any](h *hostile, of ...T) T { return of[h.IntN(len(of))] }

// next is the next request.
func (h *hostile) next() write {
	at := nodePath(h.node)
	switch k := h.IntN(100); {
	case k < 60:
		return write{"annotations", at, object{"metadata": object{"annotations": h.lies()}}}
	case k < 68:
		return write{"metadata", at, object{"metadata": h.metadata()}}
	case k < 78:
		return write{"managedFields", at, object{"metadata": object{"managedFields": h.managed(), "annotations": h.lies()}}}
	case k < 90:
		return write{"status", at + "/status", object{"status": h.status()}}
	case k < 95:
		return write{"the truth", at, object{"metadata": object{"annotations": h.truth()}}}
	}
	return write{"nothing left", at, object{"metadata": object{"annotations": h.nothing()}}}
}

// truth is what its agent published.
func (h *hostile) truth() object {
	notes := h.nothing()
	for name, value := range h.own {
		notes[prefix+name] = value
	}
	return notes
}

var noteNames = []string{"kube-subnet-manager", "backend-type", "backend-data", "backend-v6-data", "public-ip", "public-ipv6", "public-ip-overwrite",
	"public-ipv6-overwrite", "node-public-ip"}

func (h *hostile) nothing() object {
	notes := object{}
	for _, name := range noteNames {
		notes[prefix+name] = nil
	}
	return notes
}

// lies are annotations: mostly the truth but for one or two.
func (h *hostile) lies() object {
	notes := object{prefix + "kube-subnet-manager": "true"}
	if h.IntN(3) > 0 {
		notes = h.truth()
	}
	for range 1 + h.IntN(3) {
		name := pick(h, noteNames...)
		notes[prefix+name] = h.value(name)
	}
	return notes
}

func (h *hostile) value(name string) any {
	switch h.IntN(20) {
	case 0:
		return nil
	case 1:
		return h.garbage()
	}
	switch name {
	case "kube-subnet-manager":
		return pick(h, "true", "true", "false", "", "TRUE")
	case "backend-type":
		return pick(h, h.own[name], h.own[name], "vxlan", "host-gw", "wireguard", "udp", "", "\x1b[2Jipip")
	case "backend-data", "backend-v6-data":
		return h.data()
	}
	return h.address()
}

func (h *hostile) target() target { return h.targets[h.IntN(len(h.targets))] }

func (h *hostile) address() string {
	v := h.target()
	fixed := []string{"255.255.255.255", "0.0.0.0", "0.1.2.3", "240.1.2.3", "224.0.0.1", "127.0.0.1", "169.254.1.1", "10.0.2.15", "8.8.8.8", "::1", "fe80::1", "ff02::1",
		"::ffff:10.0.0.1", "2001:db8::1", "fe80::1%eth0", "1.2.3", v.notes["public-ip"], v.notes["public-ip"], v.notes["public-ip"], v.pod.String(), v.subnet.Addr().String(),
		v.subnet.Addr().Next().String(), h.own["public-ip"]}
	return pick(h, append(fixed, h.near...)...)
}

// data is what a backend publishes: of this node, of a target, or of nobody.
func (h *hostile) data() string {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(h.Uint32())
	}
	return pick(h, h.own["backend-data"], h.target().notes["backend-data"], h.target().notes["backend-data"], h.target().notes["backend-data"],
		fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:%02x:%02x:%02x:%02x:%02x"}`, key[0], key[1], key[2], key[3], key[4]),
		fmt.Sprintf(`{"VNI":%d,"VtepMAC":"02:00:00:00:00:01"}`, h.IntN(1<<25)), `{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`, `{"VNI":1,"VtepMAC":"01:00:5e:00:00:01"}`,
		fmt.Sprintf(`{"PublicKey":%q,"Port":%d}`, base64.StdEncoding.EncodeToString(key), h.IntN(70000)), `{"PublicKey":"`+strings.Repeat("A", 43)+`="}`,
		strings.Replace(h.target().notes["backend-data"], "}", fmt.Sprintf(`,"Port":%d}`, 1+h.IntN(65535)), 1),
		"null", "{}", "[]", "7", `{"VNI":`, strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000))
}

// garbage is text that nobody expects, and sometimes much of it.
func (h *hostile) garbage() string {
	text := pick(h, "\x1b]0;pwned\x07", "\"}],", "', ; rm -rf /", "\x00", "é", "%s%n", "../../..", "A")
	return strings.Repeat(text, pick(h, 1, 10, 1000, 100_000/len(text)))
}

// metadata is what else a kubelet may write of its Node, much of it.
func (h *hostile) metadata() object {
	notes, labels := object{}, object{}
	for i := range h.IntN(300) {
		labels[fmt.Sprintf("evil.example/l%d", i)] = pick(h, any(fmt.Sprint(h.Uint32())), nil)
	}
	notes[fmt.Sprintf("evil.example/a%d", h.IntN(3))] = pick(h, any(strings.Repeat("x", h.IntN(80_000))), nil)
	return object{"annotations": notes, "labels": labels}
}

// managed is a record of who wrote which field, in which the podCIDRs stand too: others', and many.
func (h *hostile) managed() []object {
	members := []string{`".":{}`}
	for range pick(h, 1, 2, 100, 10_000) {
		p := pick(h, h.target().subnet.String(), "10.244.0.0/16", "0.0.0.0/1", fmt.Sprintf("10.244.%d.%d/32", h.IntN(256), h.IntN(256)), fmt.Sprintf("10.%d.0.0/9", h.IntN(256)), "x")
		members = append(members, fmt.Sprintf(`"v:\"%s\"":{}`, p))
	}
	return []object{{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "2020-01-01T00:00:00Z",
		"fieldsV1": rawJSON(`{"f:spec":{"f:podCIDR":{},"f:podCIDRs":{` + strings.Join(members, ",") + `}}}`)}}
}

// rawJSON is JSON as it stands; a name may be there twice.
type rawJSON string

// MarshalJSON implements json.Marshaler.
func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

// status is its addresses, conditions and images.
func (h *hostile) status() object {
	var images []object
	for i := range pick(h, 0, 1, 50, 500) {
		images = append(images, object{"names": []string{fmt.Sprintf("evil.example/%d:%s", i, strings.Repeat("i", h.IntN(800)))}, "sizeBytes": 1})
	}
	return object{"images": images, "addresses": []object{{"type": "InternalIP", "address": h.address()}, {"type": "Hostname", "address": h.node}},
		"conditions": []object{{"type": "NetworkUnavailable", "status": pick(h, "True", "False"), "reason": "Evil", "message": "\x1b[2J"},
			{"type": "Ready", "status": pick(h, "True", "False", "Unknown")}}}
}

// oddCIDRs are what the Node may have when somebody made it so.
func (h *hostile) oddCIDRs() []string {
	return pick(h, []string{"10.244.0.0/17"}, []string{"10.0.0.0/9"}, []string{h.target().pod.String() + "/32"}, []string{"10.244.77.1/32"}, []string{"0.0.0.0/0"},
		[]string{"fd00::/64"}, []string{h.target().subnet.String()}, []string{"10.244.88.0/24", "fd00:88::/64"}, nil)
}

// again is the Node, made anew by somebody who may give it a podCIDR.
func (h *hostile) again() write {
	spec := object{}
	if cidrs := h.oddCIDRs(); cidrs != nil {
		spec = object{"podCIDR": cidrs[0], "podCIDRs": cidrs}
	}
	return write{"a new Node", http.MethodPost, object{"apiVersion": "v1", "kind": "Node", "spec": spec,
		"metadata": object{"name": h.node, "annotations": h.lies()}}}
}
