package etcd

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/twill-net/twill/subnet"
)

func stack(subnetText, underlay, data string) subnet.Stack {
	s := subnet.Stack{Underlay: netip.MustParseAddr(underlay), Data: json.RawMessage(data)}
	if subnetText != "" {
		s.Subnet = netip.MustParsePrefix(subnetText)
	}
	return s
}

func TestLayout(t *testing.T) {
	for _, tc := range []struct {
		lease       subnet.Lease
		name, value string
	}{
		{
			subnet.Lease{Node: "node1", Backend: "vxlan", Stacks: []subnet.Stack{stack("10.5.52.0/24", "192.0.2.1", `{"VNI":1}`)}},
			"10.5.52.0-24",
			`{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1},"Node":"node1"}`,
		},
		{
			subnet.Lease{Node: "node1", Backend: "vxlan", Stacks: []subnet.Stack{
				stack("10.5.52.0/24", "192.0.2.1", `{"VNI":1}`), stack("fc00::/64", "2001:db8::1", `{"VNI":2}`)}},
			"10.5.52.0-24&fc00::-64",
			`{"PublicIP":"192.0.2.1","PublicIPv6":"2001:db8::1","BackendType":"vxlan","BackendData":{"VNI":1},"BackendV6Data":{"VNI":2},"Node":"node1"}`,
		},
		{
			subnet.Lease{Node: "node1", Backend: "host-gw", Stacks: []subnet.Stack{stack("fc00::/64", "2001:db8::1", "")}},
			"0.0.0.0-0&fc00::-64",
			`{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::1","BackendType":"host-gw","Node":"node1"}`,
		},
	} {
		value, err := formatValue(tc.lease)
		if name := formatName(tc.lease); err != nil || name != tc.name || value != tc.value {
			t.Errorf("%+v is written as %s = %s, %v; want %s = %s", tc.lease, name, value, err, tc.name, tc.value)
		}
		r := readRecord(tc.name, &mvccpb.KeyValue{Value: []byte(tc.value)})
		if r.err != nil || !r.named || !r.lease.Equal(tc.lease) {
			t.Errorf("%s = %s is read as %+v", tc.name, tc.value, r)
		}
	}
}

// TestReadFlannel holds what flannel v0.28 writes.
func TestReadFlannel(t *testing.T) {
	r := readRecord("10.5.34.0-24", &mvccpb.KeyValue{
		Value: []byte(`{"PublicIP":"192.168.77.2","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"4a:00:11:22:33:44"}}`),
	})
	want := subnet.Lease{Node: "192.168.77.2", Backend: "vxlan",
		Stacks: []subnet.Stack{stack("10.5.34.0/24", "192.168.77.2", `{"VNI":1,"VtepMAC":"4a:00:11:22:33:44"}`)}}
	if r.err != nil || r.named || !r.lease.Equal(want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
}

func TestReadRecordErrors(t *testing.T) {
	good := `{"PublicIP":"192.0.2.1"}`
	for _, tc := range []struct{ name, value, want string }{
		{"", good, `key "" is not a subnet`},
		{"foo", good, `key "foo" is not a subnet: want the form 10.5.52.0-24 or 10.5.52.0-24&fc00::-64`},
		{"10.5.52.0", good, "is not a subnet"},
		{"10.5.52.1-24", good, "is not a subnet"},
		{"10.5.52.0-33", good, "is not a subnet"},
		{"10.5.52.0-24/x", good, "is not a subnet"},
		{"x10.5.52.0-24", good, "is not a subnet"},
		{"fc00::-64", good, "is not a subnet"},
		{"0.0.0.0-0", good, "claims no subnet"},
		{"10.5.52.0-24&", good, "has no IPv6 subnet after &"},
		{"10.5.52.0-24&10.5.53.0-24", good, "has no IPv6 subnet after &"},
		{"10.5.52.0-24", "", `value "" is malformed: unexpected end of JSON input`},
		{"10.5.52.0-24", "{}", "PublicIP is missing for subnet 10.5.52.0/24"},
		{"10.5.52.0-24", `{"PublicIP":"2001:db8::1"}`, `PublicIP "2001:db8::1" is not an address for subnet 10.5.52.0/24`},
		{"10.5.52.0-24", `{"PublicIP":"0.0.0.0"}`, `PublicIP "0.0.0.0" is not an address`},
		{"10.5.52.0-24&fc00::-64", good, "PublicIPv6 is missing for subnet fc00::/64"},
		{"10.5.52.0-24", `{"PublicIP":"192.0.2.1","Node":"a\n# nothing to change"}`, `node name "a\n# nothing to change": want at most 253 letters`},
	} {
		if r := readRecord(tc.name, &mvccpb.KeyValue{Value: []byte(tc.value)}); r.err == nil || !strings.Contains(r.err.Error(), tc.want) {
			t.Errorf("%s = %s:\n got %v\nwant %s", tc.name, tc.value, r.err, tc.want)
		}
	}
}

// TestShown: a key that breaks the line is quoted.
func TestShown(t *testing.T) {
	for name, want := range map[string]string{"10.5.52.0-24&fc00::-64": "10.5.52.0-24&fc00::-64", "a\nb": `"a\nb"`, "": `""`} {
		if got := (record{name: name}).shown(); got != want {
			t.Errorf("%q is shown as %s, want %s", name, got, want)
		}
	}
}

func FuzzReadRecord(f *testing.F) {
	f.Add("10.5.52.0-24", []byte(`{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1}}`))
	f.Add("10.5.52.0-24&fc00::-64", []byte(`{"publicip":"192.0.2.1","PublicIPv6":"2001:db8::1","BackendV6Data":null,"Node":"a"}`))
	f.Add("0.0.0.0-0&fc00::-64", []byte(`{"PublicIP":"0.0.0.0","PublicIPv6":"fe80::1%eth0"}`))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		r := readRecord(name, &mvccpb.KeyValue{Value: value})
		if r.err != nil {
			return
		}
		text, err := formatValue(r.lease)
		if err != nil {
			t.Fatal(err)
		}
		back := readRecord(formatName(r.lease), &mvccpb.KeyValue{Value: []byte(text)})
		if back.err != nil || !back.lease.Equal(r.lease) {
			t.Errorf("%s = %s is read as %+v, written as %s = %s, and read as %+v %v",
				name, value, r.lease, formatName(r.lease), text, back.lease, back.err)
		}
	})
}
